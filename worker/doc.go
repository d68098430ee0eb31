// Package worker joins Postgres and Temporal: it runs the workers of workflows
// and activities, delivers what transactions asked of Temporal, and sweeps for
// what fell between the two, for BMCs that are due a look and for what has to be
// cleared away. Any number of workers may run: each piece of work is claimed in
// Postgres.
package worker
