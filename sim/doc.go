// Package sim is a rack of simulated machines, each with a Redfish service of
// its own: power that takes time, a boot that follows the boot override and the
// media, virtual media, tasks, sessions with limits, accounts, an inventory with
// GPUs and disks that know what was written to them.
//
// It exists to judge a controller from outside. So it never trusts what it was
// told: every answer is computed from the machine's true state, the true state
// can be read over the control API, and what the controller did is counted
// there (resets, boots, sessions, changes at once). Whatever real services do
// differently from one another (ids, order, status codes, ETags, message
// prefixes) varies by a seed, and what they do wrong is written as rules in a
// fault file (see Faults), never as a switch in this code.
//
// One factor scales all simulated time (Options.TimeScale). Durations in this
// package are simulated ones unless a comment says "wall".
package sim
