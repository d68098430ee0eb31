// Package redfish drives a BMC over Redfish. Schema types are gofish's; the
// conversation itself is here, because gofish's own client concatenates
// endpoint and link, drops the headers of an error answer (Retry-After among
// them) and keeps one context for all requests.
//
// Everything is found by links and chosen by identity. One exchange is one
// request: whoever changes something reads the resource again before it sends
// again (see classify.go for what an answer means).
package redfish
