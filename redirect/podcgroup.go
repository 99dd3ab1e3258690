// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PodSearch says how to find the cgroup of the pod that this process is in.
type PodSearch struct {
	// HostRoot is where this process sees the host's cgroup file system, by a hostPath volume:
	// a cgroup2 mount, or the /sys/fs/cgroup of a hybrid host with a cgroup2 mount in unified.
	// Required.
	HostRoot string
	// PodUID is the pod's metadata.uid. Required.
	PodUID string
	// ProcCgroup is the file that tells this process's cgroups. Empty means /proc/self/cgroup.
	ProcCgroup string
	// OwnMount is where this container sees its own cgroup. Empty means /sys/fs/cgroup.
	OwnMount string
}

// FindPodCgroup returns the directory, below HostRoot, of the pod's cgroup: the nearest one above
// this process's own whose name holds the pod's UID. How the name is made (cgroup driver, QoS
// class, container runtime, UID with "-" or "_") is not relied upon.
//
// This process's own cgroup is known from /proc/self/cgroup where that shows the host's path, else
// (a private cgroup namespace) by the inode of the container's own cgroup mount, else (no such
// mount) the pod's directory is looked for by name alone, and must be the only one.
func FindPodCgroup(s PodSearch) (string, error) {
	if !plausibleUID(s.PodUID) {
		return "", fmt.Errorf("pod UID %q: not a UID of Kubernetes (give the pod's metadata.uid, by the downward API)", s.PodUID)
	}
	if s.ProcCgroup == "" {
		s.ProcCgroup = "/proc/self/cgroup"
	}
	if s.OwnMount == "" {
		s.OwnMount = "/sys/fs/cgroup"
	}
	root, err := hostCgroup2(s.HostRoot)
	if err != nil {
		return "", err
	}
	own, err := ownPath(s.ProcCgroup)
	if err != nil {
		return "", err
	}
	trail := []string{fmt.Sprintf("%s says 0::%s", s.ProcCgroup, own)}

	if rel, ok := podPart(own, s.PodUID); ok {
		dir := filepath.Join(root, rel)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
		trail = append(trail, fmt.Sprintf("there is no %s", dir))
	}

	id, looked, err := ownID(s.OwnMount, root)
	if err != nil {
		return "", err
	}
	trail = append(trail, looked)
	found, err := searchTree(root, s.PodUID, id)
	if err != nil {
		return "", err
	}
	trail = append(trail, fmt.Sprintf("of %d directories below %s, %d hold the UID in their names", found.looked, root, len(found.named)))
	switch {
	case id != 0 && found.owner != "":
		return found.owner, nil
	case id != 0:
		trail = append(trail, fmt.Sprintf("none of these holds cgroup %d", id))
	case len(found.named) == 1:
		return found.named[0], nil
	case len(found.named) > 1:
		trail = append(trail, fmt.Sprintf("which one cannot be told: %s", strings.Join(found.named, ", ")))
	}
	return "", fmt.Errorf("no cgroup of pod %s found: %s; is the hostPath volume the host's own /sys/fs/cgroup, and the UID this pod's?",
		s.PodUID, strings.Join(trail, "; "))
}

// plausibleUID accepts an RFC 4122 UUID and the 32 hex digits of a static pod. A short or odd one
// would match directories of others.
func plausibleUID(uid string) bool {
	return len(uid) >= 16 && len(uid) <= 64 && strings.Trim(uid, "0123456789abcdefABCDEF-") == ""
}

// hostCgroup2 returns the cgroup2 mount in the hostPath.
func hostCgroup2(hostRoot string) (string, error) {
	if hostRoot == "" {
		return "", errors.New("host's cgroup file system: no directory given")
	}
	for _, dir := range []string{hostRoot, filepath.Join(hostRoot, "unified")} {
		switch ok, err := isCgroup2(dir); {
		case ok:
			return filepath.Clean(dir), nil
		case err != nil && dir == hostRoot:
			return "", fmt.Errorf("host's cgroup file system: %w (is the hostPath volume mounted there?)", err)
		}
	}
	return "", fmt.Errorf("host's cgroup file system: neither %s nor %s is cgroup2: the node runs cgroup v1 only, where the redirect cannot be attached (boot it with systemd.unified_cgroup_hierarchy=1), or the hostPath is not /sys/fs/cgroup",
		hostRoot, filepath.Join(hostRoot, "unified"))
}

// ownPath returns the path in the cgroup2 line of a /proc/PID/cgroup file, "0::PATH".
func ownPath(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("own cgroup: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if p, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "0::"); ok {
			return p, nil
		}
	}
	return "", fmt.Errorf("own cgroup: %s has no cgroup2 line (0::PATH): the node runs cgroup v1 only", file)
}

// podPart cuts a cgroup path after the last part that holds the pod's UID. A path that leads out
// of the cgroup namespace ("/../other") is not the host's.
func podPart(p, uid string) (string, bool) {
	parts := strings.Split(path.Clean("/"+p), "/")
	if strings.Contains(p, "/..") {
		return "", false
	}
	for i := len(parts) - 1; i > 0; i-- {
		if holdsUID(parts[i], uid) {
			return strings.Join(parts[:i+1], "/"), true
		}
	}
	return "", false
}

// holdsUID knows both spellings: systemd uses "-" to build the hierarchy of its slices, so its
// driver writes "_" within a name.
func holdsUID(name, uid string) bool {
	return strings.Contains(name, uid) || strings.Contains(name, strings.ReplaceAll(uid, "-", "_"))
}

// ownID returns the id of the cgroup that is mounted in this container as its own, or 0.
func ownID(mount, root string) (uint64, string, error) {
	var top unix.Stat_t
	if err := unix.Stat(root, &top); err != nil {
		return 0, "", fmt.Errorf("host's cgroup file system: %w", &os.PathError{Op: "stat", Path: root, Err: err})
	}
	for _, dir := range []string{mount, filepath.Join(mount, "unified")} {
		if ok, err := isCgroup2(dir); err != nil || !ok {
			continue
		}
		id, err := CgroupID(dir)
		if err != nil {
			return 0, "", err
		}
		if id == top.Ino {
			return 0, fmt.Sprintf("%s is the host's whole hierarchy", dir), nil
		}
		return id, fmt.Sprintf("%s is cgroup %d", dir, id), nil
	}
	return 0, fmt.Sprintf("no cgroup2 is mounted at %s", mount), nil
}

// found is the result of a walk through the host's hierarchy.
type found struct {
	looked int
	named  []string // topmost directories whose names hold the UID
	owner  string   // the nearest such directory above the wanted id
}

func searchTree(root, uid string, id uint64) (found, error) {
	var f found
	pod := "" // the deepest directory with the UID that the walk is in
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a cgroup that went while we looked
		case err != nil:
			return fmt.Errorf("host's cgroup file system: %w", err)
		case !d.IsDir():
			return nil
		}
		f.looked++
		for pod != "" && p != pod && !strings.HasPrefix(p, pod+"/") {
			pod = parentWithUID(pod, root, uid)
		}
		if p != root && holdsUID(d.Name(), uid) {
			if pod == "" {
				f.named = append(f.named, p)
			}
			pod = p
		}
		if pod != "" && id != 0 {
			if here, err := CgroupID(p); err == nil && here == id {
				f.owner = pod
				return fs.SkipAll
			}
		}
		return nil
	})
	return f, err
}

// parentWithUID is the nearest directory above dir, and below root, that holds the UID; or "".
func parentWithUID(dir, root, uid string) string {
	for dir = filepath.Dir(dir); dir != root && len(dir) > len(root); dir = filepath.Dir(dir) {
		if holdsUID(filepath.Base(dir), uid) {
			return dir
		}
	}
	return ""
}
