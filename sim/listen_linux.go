package sim

import (
	"context"
	"fmt"
	"net"
	"syscall"
)

// listenLoopback opens one socket for all addresses of the loopback device, and
// for no other device.
func listenLoopback(ctx context.Context, port int) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var bindErr error
		if err := c.Control(func(fd uintptr) {
			bindErr = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, "lo")
		}); err != nil {
			return err
		}
		return bindErr
	}}
	return lc.Listen(ctx, "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
}
