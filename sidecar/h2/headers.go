// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"strings"

	"golang.org/x/net/http2/hpack"
)

// class is what a field means to the rules of RFC 9113 section 8. It depends on
// the field alone, so that the decoder can keep it beside its table entry.
type class uint8

const (
	classRegular class = iota
	classMethod
	classScheme
	classAuthority
	classPath
	classStatus
	classContentLength
	classBadName
	classBadValue
	classBadPseudo
	classConnection
	classBadTE
)

// whyBad names the fault of a malformed field.
var whyBad = [...]string{
	classBadName:    "a field name has a forbidden character",
	classBadValue:   "a field value has a forbidden character",
	classBadPseudo:  "an unknown pseudo-header field",
	classConnection: "a connection-specific field",
	classBadTE:      "te other than trailers",
	classRegular:    "",
}

// classify judges one field; valid says whether validValue passed its value.
func classify(name, value string, valid bool) class {
	if !valid {
		return classBadValue
	}
	if len(name) > 0 && name[0] == ':' {
		switch name {
		case ":method":
			return classMethod
		case ":scheme":
			return classScheme
		case ":authority":
			return classAuthority
		case ":path":
			return classPath
		case ":status":
			return classStatus
		}
		return classBadPseudo
	}
	if !validName(name) {
		return classBadName
	}
	switch name {
	case "content-length":
		return classContentLength
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		// "An endpoint MUST NOT generate an HTTP/2 message containing
		// connection-specific header fields" (RFC 9113 section 8.2.2)
		return classConnection
	case "te":
		if trimValue(value) != "trailers" {
			return classBadTE
		}
	}
	return classRegular
}

// validName: RFC 9113 section 8.2.1: not 0x00-0x20, 0x41-0x5a (upper case),
// 0x7f-0xff, and no colon but that of pseudo-header fields.
func validName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c <= 0x20 || c >= 'A' && c <= 'Z' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return true
}

// trimValue drops white space around a value. RFC 9113 section 8.2.1 calls such
// a message malformed, but gRPC libraries send it (a grpc-message that ends in a
// space), check for it nowhere, and would lose RPCs by the letter. It is not
// part of the value (RFC 9110 section 5.5), so what goes on is well-formed.
func trimValue(v string) string { return strings.Trim(v, " \t") }

// padded reports whether trimValue would change the value.
func padded(v []byte) bool {
	n := len(v)
	return n > 0 && (v[0] == ' ' || v[0] == '\t' || v[n-1] == ' ' || v[n-1] == '\t')
}

// section is one decoded field section, and what it says.
type section struct {
	fields        []hpack.HeaderField
	size, limit   uint32 // as RFC 9113 section 6.5.2 counts
	tooLarge      bool
	bad           string // why it is malformed
	seen          uint8  // pseudo-header fields, a bit each
	regular       bool   // a field other than these was seen
	head, connect bool   // the method
	status        int
	contentLength int64 // -1: not said
	path          string
	web           bool // the scheme is http or https
}

const (
	sawMethod    = 1 << classMethod
	sawScheme    = 1 << classScheme
	sawAuthority = 1 << classAuthority
	sawPath      = 1 << classPath
	sawStatus    = 1 << classStatus
)

func (c *section) reset() {
	*c = section{fields: c.fields[:0], limit: c.limit, contentLength: -1}
}

func (c *section) add(e *entry) {
	c.size += e.size()
	if c.size > c.limit {
		c.tooLarge = true
		return
	}
	f, cl := e.HeaderField, e.class
	if e.padded {
		f.Value = trimValue(f.Value)
	}
	c.fields = append(c.fields, f)
	switch {
	case cl == classRegular:
		c.regular = true
	case cl <= classStatus:
		c.addPseudo(f.Value, cl)
	case cl == classContentLength:
		c.regular = true
		c.addContentLength(f.Value)
	case c.bad == "":
		c.bad = whyBad[cl]
	}
}

func (c *section) addPseudo(v string, cl class) {
	bit := uint8(1) << cl
	switch {
	case c.regular:
		c.bad = "a pseudo-header field behind a regular one"
	case c.seen&bit != 0:
		c.bad = "a pseudo-header field twice"
	}
	c.seen |= bit
	switch cl {
	case classMethod:
		c.head = v == "HEAD"
		c.connect = v == "CONNECT"
		if v == "" {
			c.bad = "an empty :method"
		}
	case classScheme:
		c.web = v == "http" || v == "https"
	case classPath:
		c.path = v
	case classStatus:
		c.status = parseStatus(v)
	}
}

func (c *section) addContentLength(v string) {
	n := parseLength(v)
	if n < 0 || c.contentLength >= 0 && c.contentLength != n {
		c.bad = "a content-length that is not one number"
	}
	c.contentLength = n
}

// checkRequest applies RFC 9113 section 8.3.1.
func (c *section) checkRequest() {
	if c.bad != "" {
		return
	}
	const want = sawMethod | sawScheme | sawPath
	switch {
	case c.seen&sawStatus != 0:
		c.bad = "a request with :status"
	case c.connect:
		// Section 8.5: ":scheme" and ":path" MUST be omitted.
		if c.seen != sawMethod|sawAuthority {
			c.bad = "CONNECT with other than :method and :authority"
		}
	case c.seen&want != want:
		c.bad = "a request without one of :method, :scheme and :path"
	case c.path == "":
		c.bad = "an empty :path"
	case c.web && c.path[0] != '/' && c.path != "*":
		c.bad = "a :path that is not absolute"
	}
}

// checkResponse applies RFC 9113 section 8.3.2.
func (c *section) checkResponse() {
	if c.bad != "" {
		return
	}
	switch {
	case c.seen != sawStatus:
		c.bad = "a response's pseudo-header fields are not :status alone"
	case c.status < 100:
		c.bad = "a :status that is not three digits"
	case c.status == 101:
		c.bad = "status 101, which HTTP/2 has not" // RFC 9113 section 8.6
	}
}

// parseStatus returns 0 for what is not three digits from 100 on.
func parseStatus(v string) int {
	if len(v) != 3 {
		return 0
	}
	n := 0
	for i := range 3 {
		if v[i] < '0' || v[i] > '9' {
			return 0
		}
		n = n*10 + int(v[i]-'0')
	}
	if n < 100 {
		return 0
	}
	return n
}

// parseLength returns -1 for what is not a number below 10^18.
func parseLength(v string) int64 {
	if v == "" || len(v) > 18 {
		return -1
	}
	var n int64
	for i := range len(v) {
		if v[i] < '0' || v[i] > '9' {
			return -1
		}
		n = n*10 + int64(v[i]-'0')
	}
	return n
}
