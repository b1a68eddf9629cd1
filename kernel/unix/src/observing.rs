//! Views of the kernel from outside: counters, traces, latencies, snapshots, and lines on the console.

pub(crate) mod call_log;
pub(crate) mod callers;
pub(crate) mod counters;
pub(crate) mod latency;
pub(crate) mod positions;
pub(crate) mod processes;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod standstill;
pub(crate) mod trace;
