// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package pki makes and rotates Evenkeel's own certificates. It is pure: bytes
// and the time in, bytes out. Who stores and publishes them is package
// injector/certs' matter.
//
// # States of a root
//
//	        Advance: renewal is due          Advance: published long enough
//	(none) ───────────────────────► next ───────────────────────────────► signing
//	   │   Advance: nothing usable stored                                    │
//	   └────────────────────────────────────────────────────────────────────┤
//	                                                                          ▼
//	                    (dropped) ◄─────────────────────────────────────── retired
//	                               Advance: no serving certificate depends on it
//
// An arrow is a decision of [Policy.Advance]. Everything in the bundle (signing,
// next, retired) is trusted by clients; only signing issues. So a client meets
// no certificate whose root it has not had for at least [Policy.PublishFor].
//
// Times come from the certificates themselves and not from bookkeeping beside
// them: a state that can be read off the material cannot disagree with it.
//
// # What goes wrong, and what happens
//
//	stored key unreadable or not the certificate's   a new root signs; the old one stays in the bundle, and
//	                                                 serving certificates it issued stay in use, until
//	                                                 clients have had the new one for PublishFor
//	stored certificate unreadable, key readable      the certificate is taken from the bundle or from beside
//	                                                 a serving certificate, by its public key
//	everything stored is gone                        the caller's last good authority is stored again; without
//	                                                 one a new root, and the roots beside the serving
//	                                                 certificates stay trusted
//	root expired                                     a new root at once
//
// # Limitations
//
// Keys are ECDSA P-256. There are no intermediates and no revocation: a root is
// known only to this product, serving certificates live for weeks.
package pki
