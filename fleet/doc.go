// Package fleet is the vocabulary of the control plane: ids, states, the
// provision table, the method table, permissions and roles, error codes, the
// views that leave the API and the waiting times. It imports the standard
// library only; every other package speaks in its terms.
package fleet
