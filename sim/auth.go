package sim

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Roles of accounts, as the Redfish standard names them.
const (
	roleAdministrator = "Administrator"
	roleOperator      = "Operator"
	roleReadOnly      = "ReadOnly"
)

// open says what can be asked without a log-in.
func open(req *request) bool {
	switch req.path {
	case "/redfish", serviceRoot, serviceRoot + "/odata", serviceRoot + "/$metadata":
		return req.method == http.MethodGet || req.method == http.MethodHead
	case serviceRoot + "/SessionService/Sessions":
		return req.method == http.MethodPost
	}
	return false
}

// admit authenticates and authorises a request; nil = let it in.
func (m *Machine) admit(req *request) *answer {
	if req.again || open(req) {
		return nil
	}
	account, refusal := m.authenticate(req)
	if refusal != nil {
		return refusal
	}
	req.user = account.Username
	own := req.path == m.accountPath(account)
	if account.MustChange && !(own && (req.method == http.MethodGet || req.method == http.MethodPatch)) && !m.ownSession(req) {
		return m.passwordChangeRequired(account)
	}
	if req.method == http.MethodGet || req.method == http.MethodHead || own || m.ownSession(req) {
		return nil
	}
	service := strings.HasPrefix(req.path, serviceRoot+"/AccountService") || strings.HasPrefix(req.path, serviceRoot+"/Managers") &&
		!strings.Contains(req.path, "/VirtualMedia/")
	if account.Role == roleAdministrator || account.Role == roleOperator && !service {
		return nil
	}
	return m.insufficientPrivilege()
}

func (m *Machine) ownSession(req *request) bool {
	return req.session != "" && req.path == serviceRoot+"/SessionService/Sessions/"+req.session
}

func (m *Machine) authenticate(req *request) (*Account, *answer) {
	if token := req.header.Get("X-Auth-Token"); token != "" {
		req.auth = "session"
		for i := range m.st.Sessions {
			s := &m.st.Sessions[i]
			if s.Token != token {
				continue
			}
			a := m.account(s.Username)
			if a == nil || !a.Enabled {
				break
			}
			s.LastUse = req.now
			req.session = s.ID
			return a, nil
		}
		return nil, m.unauthorized()
	}
	user, password, ok := basicAuth(req.header)
	if !ok {
		return nil, m.unauthorized()
	}
	req.auth = "basic"
	a := m.logIn(user, password, req.now)
	if a == nil {
		return nil, m.unauthorized()
	}
	return a, nil
}

func basicAuth(h http.Header) (user, password string, ok bool) {
	return (&http.Request{Header: h}).BasicAuth()
}

// logIn checks a password and counts what is wrong; nil = refused.
func (m *Machine) logIn(user, password string, now time.Time) *Account {
	a := m.account(user)
	if a == nil || !a.Enabled {
		m.st.Counts.LoginsFailed++
		return nil
	}
	if now.Before(a.LockedUntil) {
		m.st.Counts.LoginsFailed++
		return nil
	}
	if a.Password != password {
		m.st.Counts.LoginsFailed++
		a.Failures++
		if t := m.prof.Accounts.LockoutThreshold; t > 0 && a.Failures >= t {
			a.LockedUntil = now.Add(time.Duration(m.prof.Accounts.LockoutDuration))
			a.Failures = 0
		}
		return nil
	}
	a.Failures = 0
	return a
}

func (m *Machine) account(user string) *Account {
	for i := range m.st.Accounts {
		if m.st.Accounts[i].Username == user {
			return &m.st.Accounts[i]
		}
	}
	return nil
}

func (m *Machine) passwordChangeRequired(a *Account) *answer {
	return m.errorAnswer(http.StatusForbidden, m.passwordChangeFault(a))
}

func (m *Machine) passwordChangeFault(a *Account) fault {
	return fault{id: "PasswordChangeRequired", args: []string{m.accountPath(a)},
		text: "The password provided for this account must be changed before access is granted. PATCH the Password property for this account located at the target URI '%1' to complete this process."}
}

// expireSessions ends the sessions that nobody used for the timeout.
func (m *Machine) expireSessions(now time.Time) {
	limit := max(time.Duration(m.spec.SessionTimeout), m.rack.clock.simulated(sessionFloor))
	m.st.Sessions = slices.DeleteFunc(m.st.Sessions, func(s Session) bool {
		return now.Sub(s.LastUse) > limit
	})
}
