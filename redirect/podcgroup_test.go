// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
)

const (
	uid        = "0c8b2a54-7f3e-4d2b-9a51-6f0c2d9e1b77"
	uidUnder   = "0c8b2a54_7f3e_4d2b_9a51_6f0c2d9e1b77"
	uidStatic  = "f3a1c0de5b7d4e8f9a0b1c2d3e4f5a6b"
	otherUID   = "11111111-7f3e-4d2b-9a51-6f0c2d9e1b77"
	containerd = "cri-containerd-2f6a.scope"
)

// tree makes a hierarchy as the kubelet does, in the real cgroup2, and returns its top.
func tree(t *testing.T, dirs ...string) string {
	t.Helper()
	top := newCgroup(t, "host")
	made := map[string]bool{"": true}
	for _, dir := range dirs {
		var part string
		for word := range strings.SplitSeq(dir, "/") {
			part = filepath.Join(part, word)
			if !made[part] {
				made[part] = true
				mkCgroup(t, filepath.Join(top, part))
			}
		}
	}
	return top
}

func TestFindPodCgroupByPath(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct{ uid, path, want string }{
		"cgroupfs driver, BestEffort":   {uid, "kubepods/besteffort/pod" + uid + "/2f6a", "kubepods/besteffort/pod" + uid},
		"cgroupfs driver, Guaranteed":   {uid, "kubepods/pod" + uid + "/2f6a", "kubepods/pod" + uid},
		"kubelet's own cgroup root":     {uid, "e2e-node1/kubepods/burstable/pod" + uid + "/2f6a", "e2e-node1/kubepods/burstable/pod" + uid},
		"systemd driver":                {uid, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnder + ".slice/" + containerd, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnder + ".slice"},
		"crun's cgroup in the scope":    {uid, "kubepods.slice/kubepods-pod" + uidUnder + ".slice/crio-2f6a.scope/container", "kubepods.slice/kubepods-pod" + uidUnder + ".slice"},
		"static pod":                    {uidStatic, "kubepods/besteffort/pod" + uidStatic + "/2f6a", "kubepods/besteffort/pod" + uidStatic},
		"the pod's own directory":       {uid, "kubepods/pod" + uid, "kubepods/pod" + uid},
		"a kubelet in a pod of its own": {uid, "kubepods/pod" + otherUID + "/node/kubepods/pod" + uid + "/2f6a", "kubepods/pod" + otherUID + "/node/kubepods/pod" + uid},
	} {
		t.Run(name, func(t *testing.T) {
			top := tree(t, c.path)
			// All of /proc/self/cgroup of a hybrid host; PATH is below the mount.
			root := cgroupRoot(t)
			rel := strings.TrimPrefix(top, root)
			proc := filepath.Join(t.TempDir(), "cgroup")
			content := "12:memory:/somewhere/pod" + otherUID + "\n1:name=systemd:/\n0::" + rel + "/" + c.path + "\n"
			if err := os.WriteFile(proc, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := redirect.FindPodCgroup(redirect.PodSearch{HostRoot: root, PodUID: c.uid, ProcCgroup: proc, OwnMount: t.TempDir()})
			if err != nil || got != filepath.Join(top, c.want) {
				t.Errorf("got %q, %v, want %q", got, err, filepath.Join(top, c.want))
			}
		})
	}
}

// On a pure cgroup2 node a container has a cgroup namespace of its own: its path is "/", and its
// /sys/fs/cgroup is its cgroup, known by the inode. The real thing, in a container of its own.
func TestFindPodCgroupInItsOwnNamespace(t *testing.T) {
	if dir := os.Getenv("EVENKEEL_TEST_CGROUPNS"); dir != "" {
		findInNamespace(t, dir)
		return
	}
	needRoot(t)
	top := tree(t,
		"kubepods.slice/kubepods-pod"+uidUnder+".slice/"+containerd,
		"kubepods.slice/kubepods-pod"+strings.ReplaceAll(otherUID, "-", "_")+".slice/"+containerd)
	pod := filepath.Join(top, "kubepods.slice/kubepods-pod"+uidUnder+".slice")
	f, err := os.Open(filepath.Join(pod, containerd))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), "EVENKEEL_TEST_CGROUPNS="+pod)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS,
		UseCgroupFD: true,
		CgroupFD:    int(f.Fd()),
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
}

func findInNamespace(t *testing.T, want string) {
	root := cgroupRoot(t)
	// Keep a view of the host's hierarchy, as the hostPath volume does, and then become a
	// container: mounts and cgroups of our own.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	if err := unix.Mount(root, host, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, host) })
	// The namespace is per thread, but every thread is born from one that has it only if it is
	// this one: so look from this thread, through its own /proc file.
	done := make(chan struct{})
	go func() {
		defer close(done)
		lockForEver()
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			t.Error(err)
			return
		}
		own := t.TempDir()
		if err := unix.Mount("cgroup2", own, "cgroup2", 0, ""); err != nil {
			t.Error(err)
			return
		}
		defer unmount(t, own)
		proc := "/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/cgroup"
		data, err := os.ReadFile(proc)
		if err != nil || !strings.Contains(string(data), "0::/\n") {
			t.Errorf("not in a cgroup namespace: %q, %v", data, err)
		}
		search := redirect.PodSearch{HostRoot: host, PodUID: uid, ProcCgroup: proc, OwnMount: own}
		wantHere := filepath.Join(host, strings.TrimPrefix(want, root))
		if got, err := redirect.FindPodCgroup(search); err != nil || got != wantHere {
			t.Errorf("by inode: got %q, %v, want %q", got, err, wantHere)
		}
		// The other pod is there too, but this process is not in it.
		search.PodUID = otherUID
		_, err = redirect.FindPodCgroup(search)
		if err == nil || !strings.Contains(err.Error(), "none of these holds cgroup") {
			t.Errorf("another pod's UID: got %v, want a refusal", err)
		}
		// A hybrid host: no cgroup2 mount in the container; the name alone decides.
		search.PodUID, search.OwnMount = uid, t.TempDir()
		if got, err := redirect.FindPodCgroup(search); err != nil || got != wantHere {
			t.Errorf("by name: got %q, %v, want %q", got, err, wantHere)
		}
	}()
	<-done
}

func unmount(t *testing.T, dir string) {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
	}
}

func TestFindPodCgroupRefusals(t *testing.T) {
	needRoot(t)
	root := cgroupRoot(t)
	top := tree(t, "a/pod"+uid, "b/pod"+uid)
	proc := func(content string) string {
		f := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	nowhere := t.TempDir()
	for name, c := range map[string]struct {
		search redirect.PodSearch
		want   []string
	}{
		"no UID":          {redirect.PodSearch{HostRoot: root}, []string{`pod UID ""`, "metadata.uid"}},
		"unset variable":  {redirect.PodSearch{HostRoot: root, PodUID: "$(POD_UID)"}, []string{`"$(POD_UID)"`}},
		"too short":       {redirect.PodSearch{HostRoot: root, PodUID: "0c8b"}, []string{`"0c8b"`}},
		"no hostPath":     {redirect.PodSearch{PodUID: uid}, []string{"no directory given"}},
		"absent hostPath": {redirect.PodSearch{HostRoot: "/nonexistent", PodUID: uid}, []string{"/nonexistent", "hostPath"}},
		"cgroup v1":       {redirect.PodSearch{HostRoot: "/proc", PodUID: uid}, []string{"/proc", "cgroup v1 only"}},
		"no cgroup2 line": {redirect.PodSearch{HostRoot: root, PodUID: uid, ProcCgroup: proc("3:cpu:/x\n")}, []string{"no cgroup2 line"}},
		"unknown pod":     {redirect.PodSearch{HostRoot: root, PodUID: otherUID, ProcCgroup: proc("0::/\n"), OwnMount: nowhere}, []string{otherUID, "says 0::/", "no cgroup2 is mounted at " + nowhere, "0 hold the UID"}},
		"two of a name":   {redirect.PodSearch{HostRoot: root, PodUID: uid, ProcCgroup: proc("0::/\n"), OwnMount: nowhere}, []string{"2 hold the UID", "which one cannot be told", top + "/a/pod" + uid, top + "/b/pod" + uid}},
		"not the host's":  {redirect.PodSearch{HostRoot: root, PodUID: uid, ProcCgroup: proc("0::/x/pod" + uid + "/y\n"), OwnMount: nowhere}, []string{"there is no " + root + "/x/pod" + uid}},
		"outside":         {redirect.PodSearch{HostRoot: root, PodUID: uid, ProcCgroup: proc("0::/../../a/pod" + uid + "\n"), OwnMount: root}, []string{root + " is the host's whole hierarchy", "which one cannot be told"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := redirect.FindPodCgroup(c.search)
			if err == nil {
				t.Fatalf("got %q, want a refusal", got)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
		})
	}
}
