// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package watch brings Services, EndpointSlices, Pods, Nodes and routes to a
// snapshot, and Events to Pods.
//
//	API server ──informers──▶ trim ──▶ queue ──deliver──▶ Sink
//	directory  ──fsnotify───▶ decode, merge ────Apply───▶ Sink
//	Event ──▶ queue ──correlate──▶ API server
//
// There are two sources: Kube watches an API server, Files reads YAML from a
// directory. Both make the snapshot's inputs by the same conversion and deliver
// changes in batches from one goroutine.
//
// It is the only package of the control plane that knows client-go.
//
// # Kube
//
// An object is reduced to the snapshot's input before the informer stores it, so
// a Pod costs a few hundred bytes, and both share it. The one handler for all
// kinds puts the newest state of an object into a map and returns: it cannot
// block the informer, and what waits is bounded by what exists.
//
// Ingresses and the routes of the Gateway API say which Services have clients
// outside of the cluster. Which kinds there are is asked each minute; nothing waits
// for them. A route whose parents are all Services (GAMMA) opens nothing.
//
// It also writes the Events of pods, from a bounded queue by a goroutine of its own.
//
// # Files
//
// A file is read once nobody writes to it any more, and as a whole: with one
// mistake in it, its last good content stays in force, and the log names file,
// line and field. Other files are not concerned. An object that two files define
// is taken from the first by name. Kinds that are not watched are left out. A
// Service that names no ClusterIP is given one, as the API server would.
//
// # Failures
//
//	API server away          informers list and watch again with backoff; what was
//	                         seen stays; evenkeel_xds_watch_errors_total counts
//	a kind cannot be watched Health says so after 30 s, with the last error;
//	                         evenkeel_xds_watch_failing_seconds grows
//	API server hangs, or     HTTP/2's pings end the watch after 45 s; then as above,
//	packets are lost         an answer that does not come being a failure
//	watch open but silent    evenkeel_xds_watch_age_seconds grows beyond the minute
//	                         between bookmarks
//	no right to list a kind  never synced: the log names the kind, again and again
//	no right to list routes  said once; Services that only they open count as inner
//	no such kind of route    silent: a cluster without the Gateway API is normal
//	object with a bad field  the rest of it is used; logged, counted in
//	                         evenkeel_xds_invalid_objects
//	Events not taken         tried again for 7 s, or not at all when refused; said once,
//	                         counted in evenkeel_xds_events_total
//	no file notifications    the directory is looked at every BlindPoll instead
//
// # Limitations
//
// Endpoints are read from EndpointSlices only, never made from a Service's
// selector: a directory has to hold the slices too. Directories are not entered. Of
// routes, a directory's Ingresses are read, not those of the Gateway API; a
// ReferenceGrant that is missing is not noticed; Services behind a mirror filter, or
// behind a route of another kind, count as inner ones.
package watch
