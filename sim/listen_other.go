//go:build !linux

package sim

import (
	"context"
	"errors"
	"net"
)

// listenLoopback is not possible here: a socket cannot be kept to the loopback
// device, and one on all addresses would be reachable from outside.
func listenLoopback(context.Context, int) (net.Listener, error) {
	return nil, errors.New("this system cannot bind a socket to the loopback device")
}
