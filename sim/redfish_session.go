package sim

import (
	"net/http"
	"slices"
	"strconv"
	"time"
)

const sessionsPath = serviceRoot + "/SessionService/Sessions"

func (m *Machine) findSessionService(rest []string) *resource {
	switch {
	case len(rest) == 0:
		return &resource{get: func(*request) object {
			doc := m.typed("SessionService", serviceRoot+"/SessionService", "SessionService", "Session Service")
			doc["ServiceEnabled"] = true
			doc["SessionTimeout"] = int(time.Duration(m.spec.SessionTimeout).Seconds())
			doc["Sessions"] = link(sessionsPath)
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return m.dress("SessionService", doc)
		}}
	case rest[0] != "Sessions":
		return nil
	case len(rest) == 1:
		return &resource{post: m.postSession, get: func(req *request) object {
			var paths []string
			for _, s := range m.st.Sessions {
				paths = append(paths, sessionsPath+"/"+s.ID)
			}
			return m.collection(req, "Session", sessionsPath, "Session Collection", paths)
		}}
	case len(rest) == 2:
		n := slices.IndexFunc(m.st.Sessions, func(s Session) bool { return s.ID == rest[1] })
		if n < 0 {
			return nil
		}
		return &resource{
			get: func(*request) object { return m.sessionDocument(m.st.Sessions[n]) },
			del: func(*request) *answer {
				a := m.success(m.vary.delete)
				id := m.st.Sessions[n].ID
				a.bookkeeping = true
				a.act = func(time.Time) {
					m.st.Sessions = slices.DeleteFunc(m.st.Sessions, func(s Session) bool { return s.ID == id })
				}
				return a
			},
		}
	}
	return nil
}

func (m *Machine) sessionDocument(s Session) object {
	doc := m.typed("Session", sessionsPath+"/"+s.ID, s.ID, "User Session")
	doc["UserName"] = s.Username
	doc["Password"] = nil
	return m.dress("Session", doc)
}

// postSession logs in. A table that is full is told before the password is looked at.
func (m *Machine) postSession(req *request) *answer {
	user, ok := req.body["UserName"].(string)
	if !ok {
		return m.propertyMissing("/UserName")
	}
	password, ok := req.body["Password"].(string)
	if !ok {
		return m.propertyMissing("/Password")
	}
	if len(m.st.Sessions) >= m.spec.SessionLimit {
		return m.errorAnswer(http.StatusServiceUnavailable, fault{id: "SessionLimitExceeded",
			text: "The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation."})
	}
	account := m.logIn(user, password, req.now)
	if account == nil {
		return m.unauthorized()
	}
	s := m.newSession(user, req.now)
	a := &answer{status: http.StatusCreated, body: m.sessionDocument(s), bookkeeping: true}
	a.header = map[string]string{"X-Auth-Token": s.Token, "Location": sessionsPath + "/" + s.ID}
	if m.vary.absoluteLocation {
		a.header["Location"] = "https://" + req.host + sessionsPath + "/" + s.ID
	}
	if account.MustChange {
		a.body["@Message.ExtendedInfo"] = []any{m.message(m.passwordChangeFault(account))}
	}
	a.act = func(now time.Time) {
		m.st.Serial++
		m.st.Counts.Logins++
		m.st.Sessions = append(m.st.Sessions, s)
	}
	return a
}

func (m *Machine) newSession(user string, now time.Time) Session {
	n := m.st.Serial + 1
	s := Session{Username: user, LastUse: now, Token: randomToken()}
	switch m.prof.Sessions.ID {
	case "random":
		s.ID = m.ident(0).serial("session", n, 10)
	case "name":
		s.ID = user + m.ident(0).digits("session", n, 16)
	default:
		s.ID = strconv.Itoa(n)
	}
	return s
}
