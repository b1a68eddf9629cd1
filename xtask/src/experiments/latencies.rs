//! Latencies measured by the kernel itself: the time of requests from the card to the answer, for each priority.
//!
//! The program `monitor` in the machine sends them over each connection. Ranges are a sixteenth of an octave wide; sums
//! are exact.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use abi_unix::trace::{LATENCY_BUCKETS, LATENCY_MAGIC, LATENCY_WORDS, latency_of_bucket};
use anyhow::{Context as _, Result, bail};

/// Port of `monitor` in the machine.
pub const PORT: u16 = 7777;

/// Longest time of an answer of `monitor`.
const PATIENCE: Duration = Duration::from_secs(60);

/// The latencies of one priority.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    ticks_per_second: u64,
    /// Number of requests.
    pub count: u64,
    sum: u64,
    ranges: Vec<u64>,
}

impl Latencies {
    fn us(&self, ticks: f64) -> f64 {
        ticks * 1e6 / self.ticks_per_second as f64
    }

    /// Returns the mean in microseconds of the machine.
    pub fn mean_us(&self) -> f64 {
        self.us(self.sum as f64 / self.count.max(1) as f64)
    }

    /// Returns the latency that this share of the requests does not exceed: the middle of its range.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let wanted = (self.count as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        let range = self.ranges.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let range = range.unwrap_or(LATENCY_BUCKETS - 1);
        let (begin, end) = (latency_of_bucket(range), latency_of_bucket(range + 1));
        self.us((begin + end) as f64 / 2.0)
    }

    /// Returns the requests since an earlier look.
    fn since(&self, before: &Latencies) -> Latencies {
        Latencies {
            ticks_per_second: self.ticks_per_second,
            count: self.count - before.count,
            sum: self.sum - before.sum,
            ranges: self.ranges.iter().zip(&before.ranges).map(|(now, before)| now - before).collect(),
        }
    }
}

/// Returns the requests since an earlier look, for each priority.
pub fn since(now: &[Latencies], before: &[Latencies]) -> Vec<Latencies> {
    now.iter().zip(before).map(|(now, before)| now.since(before)).collect()
}

/// Requests the latencies from the monitor at this address.
pub fn ask(monitor: SocketAddr) -> Result<Vec<Latencies>> {
    let mut stream = TcpStream::connect(monitor).context("the monitor in the machine does not answer")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("the monitor in the machine does not answer")?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Vec<Latencies>> {
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks of eight"))).collect();
    let [LATENCY_MAGIC, ticks_per_second, priorities, levels @ ..] = &words[..] else {
        bail!("the monitor in the machine sent {} bytes that are no latencies", bytes.len());
    };
    if *ticks_per_second == 0 || levels.len() as u64 != priorities * LATENCY_WORDS as u64 {
        bail!("the monitor in the machine sent {} bytes, not {priorities} priorities", bytes.len());
    }
    let level = |words: &[u64]| Latencies {
        ticks_per_second: *ticks_per_second,
        count: words[0],
        sum: words[1],
        ranges: words[LATENCY_WORDS - LATENCY_BUCKETS..].to_vec(),
    };
    Ok(levels.chunks_exact(LATENCY_WORDS).map(level).collect())
}

#[cfg(test)]
mod tests {
    use abi_unix::trace::latency_bucket;

    use super::*;

    fn sent(latencies: &[u64]) -> Vec<u8> {
        let mut level = [0; LATENCY_WORDS];
        for &latency in latencies {
            level[0] += 1;
            level[1] += latency;
            level[LATENCY_WORDS - LATENCY_BUCKETS + latency_bucket(latency)] += 1;
        }
        [LATENCY_MAGIC, 10_000_000, 1].iter().chain(&level).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn means_and_quantiles_are_in_microseconds() {
        let measured = parse(&sent(&[100, 200, 300, 4000])).unwrap();
        assert_eq!(measured[0].count, 4);
        assert_eq!(measured[0].mean_us(), 115.0);
        for (quantile, us) in [(0.01, 10.0), (0.25, 10.0), (0.5, 20.0), (0.75, 30.0), (1.0, 400.0)] {
            let found = measured[0].quantile_us(quantile);
            assert!((found / us - 1.0).abs() < 0.07, "{quantile}: {found}, not {us}");
        }
    }

    #[test]
    fn an_earlier_look_is_left_out() {
        let (before, now) = (parse(&sent(&[5, 7])).unwrap(), parse(&sent(&[5, 7, 40])).unwrap());
        assert_eq!(since(&now, &before), parse(&sent(&[40])).unwrap());
    }

    #[test]
    fn nonsense_is_refused() {
        let whole = sent(&[1]);
        assert!(parse(&[]).is_err());
        assert!(parse(&whole[8..]).is_err());
        assert!(parse(&whole[..whole.len() - 8]).is_err());
    }
}
