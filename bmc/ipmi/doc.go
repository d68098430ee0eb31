// Package ipmi drives a BMC over IPMI 2.0 (RMCP+). The power state and the
// event log are read through bmclib, with a registry that holds exactly one
// driver. Everything that changes something runs ipmitool through one function
// (tool.go): bmclib's helpers send a failed command again with another cipher
// suite, try every provider in turn, and call an unreachable BMC a success.
//
// What IPMI cannot do (virtual media, HTTP boot, secure erase, a password that
// is not shown on a command line) is UNSUPPORTED, saying what to use instead.
package ipmi
