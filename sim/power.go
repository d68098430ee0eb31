package sim

import "time"

// toRestart is the target of a Transition that is neither On nor Off.
const toRestart = "Restart"

// causeSelf is the cause of a boot that no client asked for.
const causeSelf = "self"

// reset carries out a reset that was accepted. What a machine in the wrong
// state does with it is what most do: nothing.
func (m *Machine) reset(i int, resetType string, now time.Time) {
	s := &m.st.Systems[i]
	off := s.Power == powerOff
	switch resetType {
	case "On", "ForceOn":
		m.turnOn(s, resetType, now)
	case "ForceOff":
		m.turnOff(s, now)
	case "GracefulShutdown":
		m.askToStop(s, Transition{To: powerOff, Cause: resetType}, now)
	case "GracefulRestart":
		m.askToStop(s, Transition{To: toRestart, Cause: resetType}, now)
	case "PushPowerButton":
		if off {
			m.turnOn(s, resetType, now)
		} else {
			m.askToStop(s, Transition{To: powerOff, Cause: resetType}, now)
		}
	case "ForceRestart":
		if !off {
			s.Transition = nil
			m.startPost(i, resetType, now)
		}
	case "PowerCycle":
		if !off {
			s.Transition = &Transition{To: powerOff, Then: powerOn, Cause: resetType, At: now.Add(m.settle())}
		}
	}
}

func (m *Machine) turnOn(s *System, cause string, now time.Time) {
	if s.Power == powerOn || s.Transition != nil && s.Transition.To == powerOn {
		return
	}
	s.Transition = &Transition{To: powerOn, Cause: cause, At: now.Add(m.settle())}
}

func (m *Machine) turnOff(s *System, now time.Time) {
	switch {
	case s.Power == powerOff:
		s.Transition = nil // the power-on under way does not happen
	case s.Transition != nil && s.Transition.To == powerOff && s.Transition.Then == "" && s.Transition.Cause == "ForceOff":
	default:
		s.Transition = &Transition{To: powerOff, Cause: "ForceOff", At: now.Add(m.settle())}
	}
}

// askToStop presses the power button: an operating system shuts down in its
// time, a firmware without one turns off, a POST does not listen.
func (m *Machine) askToStop(s *System, t Transition, now time.Time) {
	if s.Power == powerOff || s.Transition != nil || m.spec.GracefulShutdown == "ignore" || !s.PostUntil.IsZero() {
		return
	}
	takes := m.settle()
	if s.Running != nil && s.Running.Source != sourceNone {
		takes += shutdownTime
	}
	t.At = now.Add(takes)
	s.Transition = &t
}

// arrive ends a transition at its time.
func (m *Machine) arrive(i int, at time.Time) {
	s := &m.st.Systems[i]
	t := *s.Transition
	s.Transition = nil
	switch t.To {
	case powerOn:
		s.Power = powerOn
		m.startPost(i, t.Cause, at)
	case toRestart:
		m.startPost(i, t.Cause, at)
	default:
		m.halt(i)
		s.Power = powerOff
		s.PostUntil = time.Time{}
		if t.Then == powerOn {
			s.Transition = &Transition{To: powerOn, Cause: t.Cause, At: at.Add(m.settle())}
		}
	}
}

// startPost begins the power-on self test; whatever ran ends.
func (m *Machine) startPost(i int, cause string, at time.Time) {
	m.halt(i)
	s := &m.st.Systems[i]
	s.Cause = cause
	s.PostUntil = at.Add(m.post())
}

// Restart has the machine restart by itself, as after a crash or at the hand of
// somebody who stands before it. It says whether the machine was on.
func (m *Machine) Restart() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.rack.clock.now()
	m.advance(now)
	on := m.st.Systems[0].Power == powerOn
	if on {
		m.st.Systems[0].Transition = nil
		m.startPost(0, causeSelf, now)
	}
	m.advance(now)
	m.record()
	return on
}

// halt ends what runs on a system, without warning.
func (m *Machine) halt(i int) {
	if stop := m.boots[i]; stop != nil {
		stop()
		delete(m.boots, i)
	}
	m.st.Systems[i].Running = nil
}

// shownPower is the PowerState that the service answers.
func (m *Machine) shownPower(s *System) string {
	if s.Transition == nil || m.vary.during != "transitional" {
		return s.Power
	}
	switch s.Transition.To {
	case powerOn:
		return "PoweringOn"
	case powerOff:
		return "PoweringOff"
	}
	return s.Power
}
