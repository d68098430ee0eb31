package redfish

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// message is one entry of extended information, read leniently: some services
// send numbers as arguments, iLO spells MessageID (Go matches either).
type message struct {
	MessageID         string `json:"MessageId"`
	Message           string
	MessageArgs       []any
	RelatedProperties []string
}

// key is the last part of the message id: registry, version and vendor do not
// change what it means.
func (m message) key() string {
	return m.MessageID[strings.LastIndexByte(m.MessageID, '.')+1:]
}

// names says whether the message is about a property, by pointer, argument or
// text.
func (m message) names(property string) bool {
	for _, p := range m.RelatedProperties {
		if strings.HasSuffix(p, property) {
			return true
		}
	}
	for _, a := range m.MessageArgs {
		if s, ok := a.(string); ok && strings.HasSuffix(s, property) {
			return true
		}
	}
	return strings.Contains(m.Message, property)
}

type messages []message

// messagesOf collects the extended information of an answer, wherever services
// put it: below error, at the top, beside a property, or iLO 4's Messages.
func messagesOf(body []byte) messages {
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil {
		return nil
	}
	var out messages
	take := func(raw json.RawMessage) {
		var list []message
		if json.Unmarshal(raw, &list) == nil {
			out = append(out, list...)
			return
		}
		var one message
		if json.Unmarshal(raw, &one) == nil && one.MessageID != "" {
			out = append(out, one)
		}
	}
	if raw, ok := top["error"]; ok {
		var e struct {
			Code     string          `json:"code"`
			Message  string          `json:"message"`
			Extended json.RawMessage `json:"@Message.ExtendedInfo"`
		}
		if json.Unmarshal(raw, &e) == nil {
			take(e.Extended)
			if len(out) == 0 && e.Code != "" {
				out = append(out, message{MessageID: e.Code, Message: e.Message})
			}
		}
	}
	for k, raw := range top {
		if strings.HasSuffix(k, "@Message.ExtendedInfo") {
			take(raw)
		}
	}
	if raw, ok := top["Messages"]; ok && len(out) == 0 {
		take(raw)
	}
	return out
}

func (ms messages) first() string {
	for _, m := range ms {
		if m.MessageID != "" {
			return fleet.Text(m.MessageID, saidMost)
		}
	}
	return ""
}

// has returns the first message of a meaning.
func (ms messages) has(what *meaning) (message, bool) {
	for _, m := range ms {
		if what.has(m.key()) {
			return m, true
		}
	}
	return message{}, false
}

// text is the messages in one line for a person.
func (ms messages) text() string {
	var parts []string
	for _, m := range ms {
		s := m.MessageID
		if m.Message != "" {
			s = fmt.Sprintf("%s (%s)", strings.TrimSpace(m.Message), m.MessageID)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// saidMost bounds what is told of a BMC's messages, in bytes.
const saidMost = 500

// said is what a BMC's words become in an error: without secrets, which are
// looked for before it is cut, and bounded.
func (c *Client) said(words string) string { return fleet.Text(c.redact(words), saidMost) }
