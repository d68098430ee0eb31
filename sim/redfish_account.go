package sim

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const accountsPath = serviceRoot + "/AccountService/Accounts"

var roles = []string{roleAdministrator, roleOperator, roleReadOnly}

func (m *Machine) accountPath(a *Account) string { return accountsPath + "/" + a.ID }

func (m *Machine) findAccountService(rest []string) *resource {
	switch {
	case len(rest) == 0:
		return &resource{get: m.accountService}
	case rest[0] == "Accounts" && len(rest) == 1:
		res := &resource{get: m.accountCollection}
		if m.prof.Accounts.Slots == 0 {
			res.post = m.postAccount
		}
		return res
	case rest[0] == "Accounts" && len(rest) == 2:
		return m.findAccount(rest[1])
	case rest[0] == "Roles" && len(rest) == 1:
		return &resource{get: func(req *request) object {
			var paths []string
			for _, r := range roles {
				paths = append(paths, serviceRoot+"/AccountService/Roles/"+r)
			}
			return m.collection(req, "Role", serviceRoot+"/AccountService/Roles", "Roles", paths)
		}}
	case rest[0] == "Roles" && len(rest) == 2 && slices.Contains(roles, rest[1]):
		return &resource{get: func(*request) object {
			doc := m.typed("Role", serviceRoot+"/AccountService/Roles/"+rest[1], rest[1], "User Role")
			doc["IsPredefined"] = true
			doc["RoleId"] = rest[1]
			return doc
		}}
	}
	return nil
}

func (m *Machine) accountService(*request) object {
	shape := m.prof.Accounts
	doc := m.typed("AccountService", serviceRoot+"/AccountService", "AccountService", "Account Service")
	doc["ServiceEnabled"] = true
	doc["MinPasswordLength"] = shape.MinPassword
	doc["MaxPasswordLength"] = shape.MaxPassword
	doc["AccountLockoutThreshold"] = shape.LockoutThreshold
	doc["AccountLockoutDuration"] = int(time.Duration(shape.LockoutDuration).Seconds())
	doc["Accounts"] = link(accountsPath)
	doc["Roles"] = link(serviceRoot + "/AccountService/Roles")
	return m.dress("AccountService", doc)
}

// accountCollection lists the accounts, and the empty slots of services that have them.
func (m *Machine) accountCollection(req *request) object {
	var paths []string
	for i := range m.st.Accounts {
		paths = append(paths, m.accountPath(&m.st.Accounts[i]))
	}
	for n := 1; n <= m.prof.Accounts.Slots; n++ {
		if p := accountsPath + "/" + strconv.Itoa(n); !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	return m.collection(req, "ManagerAccount", accountsPath, "Accounts Collection", paths)
}

func (m *Machine) accountDocument(a *Account, now time.Time) object {
	doc := m.typed("ManagerAccount", m.accountPath(a), a.ID, "User Account")
	doc["UserName"] = a.Username
	doc["Password"] = nil
	doc["RoleId"] = a.Role
	doc["Enabled"] = a.Enabled
	doc["Locked"] = now.Before(a.LockedUntil)
	doc["PasswordChangeRequired"] = a.MustChange
	if a.Role != "" {
		doc["Links"] = object{"Role": link(serviceRoot + "/AccountService/Roles/" + a.Role)}
	}
	return m.dress("ManagerAccount", doc)
}

func (m *Machine) findAccount(id string) *resource {
	n := slices.IndexFunc(m.st.Accounts, func(a Account) bool { return a.ID == id })
	empty := Account{ID: id}
	if n < 0 {
		if slot, err := strconv.Atoi(id); err != nil || slot < 1 || slot > m.prof.Accounts.Slots {
			return nil
		}
	}
	current := func() *Account {
		if n < 0 {
			return &empty
		}
		return &m.st.Accounts[n]
	}
	res := &resource{
		get:   func(req *request) object { return m.accountDocument(current(), req.now) },
		patch: func(req *request) *answer { return m.patchAccount(req, *current()) },
	}
	if m.prof.Accounts.Slots == 0 {
		res.del = func(req *request) *answer {
			return m.changed(req, m.vary.delete, &answer{status: http.StatusNoContent, act: func(time.Time) {
				m.st.Accounts = slices.DeleteFunc(m.st.Accounts, func(a Account) bool { return a.ID == id })
			}})
		}
	}
	return res
}

// patchAccount changes an account. Who may do what but administer may change
// the own password and nothing else.
func (m *Machine) patchAccount(req *request, a Account) *answer {
	admin := req.again
	if by := m.account(req.user); by != nil && by.Role == roleAdministrator {
		admin = true
	}
	before := a
	for k, v := range req.body {
		if k != "Password" && !admin {
			return m.insufficientPrivilege()
		}
		if refusal := m.setAccountMember(&a, k, v); refusal != nil {
			return refusal
		}
	}
	do := &answer{status: http.StatusNoContent}
	do.act = func(time.Time) { m.storeAccount(before, a) }
	do.render = func() object { return m.accountDocument(&a, req.now) }
	return m.changed(req, accountStatus(m.vary.patch), do)
}

// accountStatus is never a task: services change accounts at once.
func accountStatus(s int) int {
	if s == http.StatusAccepted {
		return http.StatusOK
	}
	return s
}

func (m *Machine) setAccountMember(a *Account, k string, v any) *answer {
	text, isText := v.(string)
	flag, isFlag := v.(bool)
	switch k {
	case "Password", "UserName", "RoleId":
		if !isText {
			return m.propertyType("/"+k, v)
		}
	case "Enabled", "Locked", "PasswordChangeRequired":
		if !isFlag {
			return m.propertyType("/"+k, v)
		}
	}
	switch k {
	case "Password":
		if len(text) < m.prof.Accounts.MinPassword || len(text) > m.prof.Accounts.MaxPassword {
			return m.badPassword()
		}
		a.Password, a.MustChange = text, false
	case "UserName":
		if other := m.account(text); text == "" && m.prof.Accounts.Slots == 0 || other != nil && other.ID != a.ID {
			return m.valueNotInList("/UserName", v)
		}
		a.Username = text
	case "RoleId":
		if !slices.Contains(roles, text) {
			return m.valueNotInList("/RoleId", v)
		}
		a.Role = text
	case "Enabled":
		a.Enabled = flag
	case "Locked":
		if flag {
			return m.valueNotInList("/Locked", v)
		}
		a.LockedUntil = time.Time{}
	case "PasswordChangeRequired":
		a.MustChange = flag
	default:
		return m.propertyUnknown("/" + k)
	}
	return nil
}

func (m *Machine) badPassword() *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyValueFormatError", property: "/Password",
		text: "The value %1 for the property %2 is of a different format than the property can accept.", args: []string{"******", "Password"}})
}

// storeAccount puts a changed account in its place, and ends sessions that its
// service ends with the old password.
func (m *Machine) storeAccount(before, a Account) {
	if n := slices.IndexFunc(m.st.Accounts, func(o Account) bool { return o.ID == before.ID }); n >= 0 {
		m.st.Accounts[n] = a
	} else {
		m.st.Accounts = append(m.st.Accounts, a)
	}
	ends := before.Username != a.Username || before.Password != a.Password && m.vary.killSessions
	if ends {
		m.st.Sessions = slices.DeleteFunc(m.st.Sessions, func(s Session) bool { return s.Username == before.Username })
	}
}

func (m *Machine) postAccount(req *request) *answer {
	a := Account{Enabled: true, Role: roleReadOnly}
	for _, k := range []string{"UserName", "Password"} {
		if _, ok := req.body[k]; !ok {
			return m.propertyMissing("/" + k)
		}
	}
	for k, v := range req.body {
		if refusal := m.setAccountMember(&a, k, v); refusal != nil {
			return refusal
		}
	}
	a.ID = strconv.Itoa(m.st.Serial + 1)
	if m.prof.Accounts.IDs == "name" {
		a.ID = strings.ReplaceAll(a.Username, "/", "_")
	}
	out := &answer{status: http.StatusCreated, body: m.accountDocument(&a, req.now),
		header: map[string]string{"Location": m.accountPath(&a)}}
	out.act = func(time.Time) {
		m.st.Serial++
		m.st.Accounts = append(m.st.Accounts, a)
	}
	return out
}
