package redfish

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// class is what an answer means for what to do next.
type class int

// The classes. classConflict and classRefused are judged by reading the state:
// the goal may be reached though the answer is an error.
const (
	classDone         class = iota // 2xx
	classLater                     // not ready: the same request again after a wait
	classConflict                  // not now, in this state
	classPrecondition              // ETag wanted, or no longer current
	classSession                   // the token is no longer good
	classAuth                      // credentials or privilege refused
	classPassword                  // the account must change its password first
	classMissing                   // no such resource
	classUnsupported               // no such operation here
	classRefused                   // understood and refused
	classLost                      // no answer came (made by callers)
)

// verdict is the judgement of one answer.
type verdict struct {
	class class
	// hint is how long the BMC asks to wait, 0 without one.
	hint time.Duration
	// post is true when the machine's POST is the reason.
	post bool
	msgs messages
}

// classify judges an answer by its status and the last part of its message
// ids. It is the only place that does.
func classify(a *answer) verdict {
	if a.status >= 200 && a.status < 300 {
		return verdict{class: classDone}
	}
	v := verdict{msgs: messagesOf(a.body)}
	v.class = classOf(a.status, v.msgs)
	if _, ok := v.msgs.has(inPost); ok {
		v.class, v.post = classLater, true
	}
	if v.class == classLater || v.class == classConflict {
		v.hint = hintOf(a, v.msgs)
	}
	return v
}

func classOf(status int, ms messages) class {
	has := func(m *meaning) bool { _, ok := ms.has(m); return ok }
	switch {
	case has(mustChange) && status < http.StatusInternalServerError:
		return classPassword
	case status == http.StatusUnauthorized:
		return classSession
	case has(tableFull):
		return classLater
	case status == http.StatusForbidden && has(noSession):
		return classSession
	case status == http.StatusForbidden && has(remote) && !has(noRights):
		return classRefused
	case status == http.StatusForbidden && has(notReady):
		return classLater
	case status == http.StatusForbidden:
		return classAuth
	case has(notReady), status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		return classLater
	case has(headerMissing), status == http.StatusPreconditionFailed, status == http.StatusPreconditionRequired:
		return classPrecondition
	case has(taken), status == http.StatusConflict, status == http.StatusLocked:
		return classConflict
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout, status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return classLater
	case status == http.StatusNotFound, status == http.StatusGone:
		return classMissing
	case status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return classUnsupported
	case status >= http.StatusInternalServerError:
		return classConflict // says nothing of what was done: read, then perhaps again
	default:
		return classRefused
	}
}

// maxHint is the longest wait that a BMC is believed to mean; operations end
// long before.
const maxHint = 24 * time.Hour

// hintOf reads how long to wait: Retry-After in seconds or as a date by the
// BMC's own clock, else seconds among the arguments of the messages.
func hintOf(a *answer, ms messages) time.Duration {
	if s := strings.TrimSpace(a.header.Get("Retry-After")); s != "" {
		if n, err := strconv.Atoi(s); err == nil && n >= 0 {
			return time.Duration(min(n, int(maxHint/time.Second))) * time.Second
		}
		if at, err := http.ParseTime(s); err == nil {
			now, err := http.ParseTime(a.header.Get("Date"))
			if err != nil {
				now = time.Now()
			}
			return min(max(0, at.Sub(now)), maxHint)
		}
	}
	for _, m := range ms {
		for _, arg := range m.MessageArgs {
			if n, err := strconv.Atoi(strings.TrimSpace(fmt.Sprint(arg))); err == nil && n > 0 && n <= 3600 {
				return time.Duration(n) * time.Second
			}
		}
	}
	return 0
}

var kindOfClass = map[class]bmc.Kind{
	classLater: bmc.KindBusy, classConflict: bmc.KindBusy, classPrecondition: bmc.KindBusy,
	classSession: bmc.KindAuth, classAuth: bmc.KindAuth, classPassword: bmc.KindAuth,
	classMissing: bmc.KindUnsupported, classUnsupported: bmc.KindUnsupported, classRefused: bmc.KindRefused,
}

var remedyOfClass = map[class]string{
	classLater:       "wait until the BMC is ready; it is tried again",
	classConflict:    "wait until the BMC is done with what it does; it is tried again",
	classSession:     "check user name and password, then metal/setCredentials",
	classAuth:        "give the account the privileges of an administrator, or use another account (metal/setCredentials)",
	classPassword:    "set a new password with metal/setCredentials {rotate: true}",
	classMissing:     "see whether the BMC's firmware offers this at all",
	classUnsupported: "see whether the BMC's firmware offers this at all",
	classRefused:     "see the BMC's own log for why",
}

// failure makes an error of an answer that is one.
func (c *Client) failure(doing string, a *answer, v verdict) error {
	cause := fmt.Sprintf("the BMC answered %d", a.status)
	if v.class == classPassword {
		cause = "the account must change its password first; " + cause
	}
	if len(v.msgs) > 0 {
		cause += ": " + c.said(v.msgs.text())
	}
	e := &bmc.Error{Kind: kindOfClass[v.class], Doing: doing, Cause: cause, Remedy: remedyOfClass[v.class],
		Status: a.status, MessageID: v.msgs.first()}
	e.RetryAfter = c.scaled(v.hint)
	if e.RetryAfter == 0 && e.Kind == bmc.KindBusy {
		e.RetryAfter = c.waits.Busy
	}
	return e
}
