package activities

import "context"

// SSHCerts are the records of SSH certificates.
type SSHCerts interface {
	// ForgetSSHCerts removes the records of certificates that ended more than a day
	// ago, and returns how many.
	ForgetSSHCerts(ctx context.Context) (int, error)
}

// CleanUp removes what has served its time.
type CleanUp struct{ SSHCerts SSHCerts }

// ForgetSSHCerts removes old records of SSH certificates.
func (c *CleanUp) ForgetSSHCerts(ctx context.Context) (int, error) {
	return c.SSHCerts.ForgetSSHCerts(ctx)
}
