// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package watch brings Services, EndpointSlices, Pods and Nodes to a snapshot.
//
//	API server ──informers──▶ trim ──▶ queue ──deliver──▶ Sink
//	directory  ──fsnotify───▶ decode, merge ────Apply───▶ Sink
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
//	watch open but silent    evenkeel_xds_watch_age_seconds grows beyond the minute
//	                         between bookmarks
//	no right to list a kind  never synced: the log names the kind, again and again
//	object with a bad field  the rest of it is used; logged, counted in
//	                         evenkeel_xds_invalid_objects
//	Events not taken         tried again for 7 s, or not at all when refused; said once,
//	                         counted in evenkeel_xds_events_total
//	no file notifications    the directory is looked at every BlindPoll instead
//
// # Limitations
//
// Endpoints are read from EndpointSlices only, never made from a Service's
// selector: a directory has to hold the slices too. Directories are not entered.
package watch
