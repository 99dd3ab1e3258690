// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// testSecret is what the handler makes up for each pod.
const testSecret = "00112233445566778899aabbccddeeff"

// testCluster is a cluster with two nameservers.
func testCluster() *Cluster {
	return &Cluster{OwnNamespace: "evenkeel-system", Nameservers: ParseNameservers("search shop.svc.cluster.local\nnameserver 10.96.0.10\nnameserver fd00::a\n")}
}

// testConfig is what a freshly installed injector has.
func testConfig(t testing.TB) *Config {
	t.Helper()
	cfg, err := ParseConfig([]byte(`
sidecarImage: ghcr.io/evenkeel/sidecar:test
initImage: ghcr.io/evenkeel/redirect:test
imagePullSecrets: [regcred]
xdsAddress: evenkeel-xds.evenkeel-system.svc:15950
`))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
