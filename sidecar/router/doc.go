// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package router answers one question for every RPC: which name are we
// holding, and is it balanced, pinned, relayed, asked about or refused?
//
// The inputs are the two facts that a stream carries: the original destination
// that the redirect remembered ("where the app meant") and the :authority of
// its request ("whom the app named"). The knowledge is a [Table]: what the
// control plane said about addresses and names. The result is a [Route].
//
// # Tour
//
//		orig, :authority ──parse──▶ Key ──Table──▶ Destination ──rules──▶ Route
//
//	  - authority.go turns :authority into an address or a normalised name,
//	    without trusting it: it is text from the application.
//	  - table.go holds the immutable [Table] and the six rules, in the order
//	    and with the numbers of the design.
//
// A [Table] is made by discovery, handed to the loop and swapped whole; nothing
// in it changes afterwards, so any number of loops may use one. The package has
// no clock, no I/O and no log; [Table.Route] allocates nothing unless it has to
// ask or to refuse.
//
// # Rules
//
//	1  orig is the ClusterIP of a Service          Balance, whatever :authority says
//	2  :authority names a headless Service         Balance, whatever pod IP was dialled
//	3  :authority names one pod, or orig is a pod  Pin to that pod
//	4  not known yet                               Ask (the caller waits ≤ 1 s, then relays)
//	   known to be none of the above               Relay to orig
//	5  (not HTTP/2: never comes here)
//	6  no orig                                     by :authority alone; Refuse when it names nothing
//
// # Failures
//
//	the control plane is away      known destinations route on; the rest Ask, then relay to orig
//	:authority is garbage          it names nothing: orig alone decides; without orig Refuse says why
//	a key was forgotten (idle)     Ask again
//
// # Limitations
//
//   - A non-headless Service that is named while some other address was dialled
//     (a foreign gateway, a client-side balancer's pod IP) is not balanced: the
//     app chose the address, and the name alone does not prove which cluster it
//     meant.
//   - Names are not resolved here (search domains, cluster domain): the control
//     plane knows the cluster's DNS and answers for the name as written.
package router
