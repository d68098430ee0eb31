package sim

import (
	"errors"
	"fmt"
)

// respecify changes the ways of a machine that exists: the members that are
// given. What a machine is made of stays.
func (m *Machine) respecify(n MachineSpec) error {
	if n.Profile != "" && n.Profile != m.spec.Profile || n.Systems != 0 && n.Systems != m.spec.Systems {
		return fmt.Errorf("machine %s: profile and number of systems are for new machines only", m.id)
	}
	if n.Seed != 0 && n.Seed != m.spec.Seed || n.Model != "" && n.Model != m.spec.Model {
		return errors.New("seed and model are for new machines only")
	}
	s := m.spec
	text := func(into *string, v string) {
		if v != "" {
			*into = v
		}
	}
	text(&s.BootHome, n.BootHome)
	text(&s.ETag, n.ETag)
	text(&s.TaskRef, n.TaskRef)
	text(&s.MediaUnder, n.MediaUnder)
	text(&s.ResetTypesFrom, n.ResetTypesFrom)
	text(&s.GracefulShutdown, n.GracefulShutdown)
	text(&s.TLS.Mode, n.TLS.Mode)
	if n.ResetTypes != nil {
		s.ResetTypes = n.ResetTypes
	}
	if n.SessionLimit != 0 {
		s.SessionLimit = n.SessionLimit
	}
	if n.SessionTimeout != 0 {
		s.SessionTimeout = n.SessionTimeout
	}
	if n.Post != nil {
		s.Post = n.Post
	}
	if n.PowerSettle != nil {
		s.PowerSettle = n.PowerSettle
	}
	if n.BootMode != "" {
		for i := range m.st.Systems {
			m.st.Systems[i].Override.Mode = n.BootMode
		}
	}
	if n.MustChangePassword {
		m.st.Accounts[0].MustChange = true
	}
	if n.TLS.Rotate {
		s.TLS.Rotate = true
		m.st.TLS.Generation++
	}
	m.st.TLS.Mode = s.TLS.Mode
	m.spec = s
	m.recordSpec()
	return nil
}

// tryEffect says whether an effect means anything on this machine, and changes nothing.
func (m *Machine) tryEffect(values map[string]any) error {
	if len(values) == 0 {
		return nil
	}
	_, err := m.withEffect(values)
	return err
}
