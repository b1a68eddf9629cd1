//! The figures of the papers that are printed beside ours.
//!
//! Matrix server: an FPGA with four harts at 100 MHz. The axis of the papers' plot is labelled "IOPS", but every point
//! fits messages in the whole five seconds. Rings: QEMU, 4,000 tasks.

/// Connections of the matrix server.
const CONNECTIONS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0];

/// Messages in five seconds for each model at [`CONNECTIONS`], up to the last point of the papers.
const MESSAGES: [(&str, &[f64]); 4] = [
    ("kcuc", &[19.5, 42.1, 83.1, 153.1, 244.9, 372.3, 486.7, 491.0]),
    ("kcut", &[22.2, 39.8, 69.6, 126.6, 147.5, 175.0, 123.6]),
    ("ktut", &[40.1, 67.3, 107.5, 153.8, 162.6, 149.2, 94.2]),
    ("ktuc", &[43.3, 79.9, 133.6, 238.3, 358.7, 482.1, 517.4, 477.2]),
];

/// Mean latencies in milliseconds.
const LATENCIES_MS: [(&str, &[f64]); 4] = [
    ("kcuc", &[167.0, 147.0, 149.0, 170.0, 242.0, 354.0, 588.0, 975.0]),
    ("kcut", &[130.0, 162.0, 195.0, 230.0, 479.0, 933.0, 4065.0]),
    ("ktut", &[25.2, 50.2, 91.1, 167.0, 426.0, 1139.0, 5993.0]),
    ("ktuc", &[16.2, 26.3, 51.1, 70.9, 127.0, 245.0, 554.0, 1040.0]),
];

/// Seconds of one run of the papers' matrix server.
const RUN_S: f64 = 5.0;

fn at_connections(values: &[f64], change: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    CONNECTIONS.iter().zip(values).map(|(connections, value)| (*connections, change(*value))).collect()
}

/// Messages in each second by connections, for each model.
pub fn throughputs() -> Vec<(&'static str, Vec<(f64, f64)>)> {
    MESSAGES.iter().map(|(model, values)| (*model, at_connections(values, |value| value / RUN_S))).collect()
}

/// Mean latencies in microseconds by connections, for each model.
pub fn latencies_us() -> Vec<(&'static str, Vec<(f64, f64)>)> {
    LATENCIES_MS.iter().map(|(model, values)| (*model, at_connections(values, |value| value * 1e3))).collect()
}

/// Messages in five seconds of the levels 0 to 7, 64 connections on one hart, as messages in each second.
pub fn levels_on_one_hart() -> Vec<(f64, f64)> {
    let messages = [85.6, 73.9, 72.1, 41.9, 8.2, 8.1, 8.3, 8.0];
    messages.iter().enumerate().map(|(level, messages)| (level as f64, messages / RUN_S)).collect()
}

/// Milliseconds of the papers' ring job with 1 to 5 threads on four harts, as nanoseconds.
pub const WORKERS_NS: [(f64, f64); 5] = [(1.0, 8930e6), (2.0, 6171e6), (3.0, 4500e6), (4.0, 4475e6), (5.0, 20_400e6)];

/// Nanoseconds of experiment A with 4,000 coroutines, and the share that this is of the threads' time.
pub const COUNTER_NS: f64 = 616e6;
pub const COUNTER_SHARE: f64 = 0.26;

/// Nanoseconds of experiment B with 4,000 coroutines by bytes.
pub const PIPES_NS: [(usize, f64); 3] = [(1, 1167e6), (256, 1145e6), (4096, 1618e6)];

/// The share of the threads' time: between these.
pub const PIPES_SHARE: (f64, f64) = (0.32, 0.44);
