package sim

import "crypto/rand"

// randomToken is a session token: as a real one, of no seed.
func randomToken() string { return rand.Text() }
