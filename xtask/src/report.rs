//! The demonstration's figures: as a table, as JSON, and as a page in one file.

use std::fmt::Write;
use std::time::Duration;

use load::Measurement;
use serde::Serialize;

use crate::chart::{Axis, Chart, Form, PlottedSeries, Scale, Style, escape};
use crate::figures::{count, duration_us, figure, table};
use crate::page;

/// Quantiles of the distribution plot: half, then all but one in ever more.
const QUANTILES: [f64; 8] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

/// Returns the number of requests of which one lies beyond a quantile.
fn requests_for(quantile: f64) -> f64 {
    (1.0 / (1.0 - quantile)).round()
}

/// One row: the figures for one number of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Connections at once.
    pub connections: usize,
    /// Right answers in each second.
    pub messages_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Latency that half of the requests did not exceed.
    pub p50_us: u64,
    /// Latency that all requests but one in a hundred did not exceed.
    pub p99_us: u64,
    /// Largest latency.
    pub max_us: u64,
    /// Requests with a wrong answer.
    pub wrong: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Requests with a right answer.
    pub answered: u64,
    /// Latency at each of a fixed list of quantiles.
    #[serde(skip)]
    quantiles_us: Vec<u64>,
}

impl Row {
    /// Creates the row of a measurement.
    pub fn new(measurement: &Measurement) -> Row {
        let latency = &measurement.latency_us;
        Row {
            connections: measurement.connections,
            messages_per_s: measurement.messages_per_second(),
            mean_us: latency.mean(),
            p50_us: latency.value_at_quantile(0.5),
            p99_us: latency.value_at_quantile(0.99),
            max_us: latency.max(),
            wrong: measurement.wrong,
            lost: measurement.lost,
            answered: measurement.answered,
            quantiles_us: QUANTILES.iter().map(|quantile| latency.value_at_quantile(*quantile)).collect(),
        }
    }

    /// Returns a latency of which there is information: of a hundred requests none is rarer than one in a hundred.
    fn quantile(&self, quantile: f64) -> Option<u64> {
        let known = requests_for(quantile) <= self.answered as f64;
        let place = QUANTILES.iter().position(|one| *one == quantile).filter(|_| known)?;
        self.quantiles_us.get(place).copied()
    }

    fn cells(&self, name: String) -> Vec<String> {
        let latency = |us: f64| if self.answered == 0 { "-".into() } else { duration_us(us) };
        vec![
            name,
            figure(self.messages_per_s),
            latency(self.mean_us),
            latency(self.p50_us as f64),
            self.quantile(0.99).map_or_else(|| "-".into(), |us| duration_us(us as f64)),
            latency(self.max_us as f64),
            count(self.wrong),
            count(self.lost),
        ]
    }
}

/// The conditions of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// The commit of the source, with a mark if it was changed since.
    pub commit: String,
    /// The board and its interrupt controller.
    pub machine: String,
    /// Number of harts.
    pub harts: u8,
    /// Size of memory.
    pub memory: String,
    /// The emulator's version.
    pub emulator: String,
    /// The host's processors.
    pub host_cores: usize,
    /// From the start of QEMU to the first verified answer.
    pub boot_to_first_answer_s: f64,
    /// Rows and columns of the matrices.
    pub matrix_order: usize,
    /// The time between two requests of a connection.
    pub interval_ms: u64,
    /// Seconds for which each row sent requests.
    pub duration_s: f64,
}

/// All figures of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub struct ReportPage {
    /// One request on each connection in each interval.
    pub rows: Vec<Row>,
    /// Each connection sends as soon as it is answered: the most that the machine can do.
    pub peak: Option<Row>,
    /// The conditions of the measurement.
    pub conditions: Conditions,
}

impl ReportPage {
    /// Returns whether every request got a right answer.
    pub fn is_faultless(&self) -> bool {
        !self.rows.is_empty() && self.all().all(|row| row.answered > 0 && row.wrong == 0 && row.lost == 0)
    }

    /// Returns every row, the peak's too.
    pub fn all(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain(&self.peak)
    }

    const HEADINGS: [&'static str; 8] = ["connections", "messages/s", "mean", "p50", "p99", "max", "wrong", "lost"];

    fn table_rows(&self) -> Vec<Vec<String>> {
        let rows = self.rows.iter().map(|row| row.cells(count(row.connections as u64)));
        let peak = self.peak.iter().map(|row| row.cells(format!("{} closed-loop", count(row.connections as u64))));
        rows.chain(peak).collect()
    }

    /// Formats the figures as a table for a terminal.
    pub fn table(&self) -> String {
        table(&Self::HEADINGS, &self.table_rows())
    }

    /// Formats the figures as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures are always JSON") + "\n"
    }

    fn connections(&self) -> Axis {
        Axis {
            label: "connections".into(),
            scale: Scale::Logarithmic,
            ticks: self.rows.iter().map(|row| (row.connections as f64, count(row.connections as u64))).collect(),
        }
    }

    fn series(&self, name: &str, style: Style, value: impl Fn(&Row) -> f64) -> PlottedSeries {
        let points = self.rows.iter().map(|row| (row.connections as f64, value(row))).collect();
        PlottedSeries { name: name.into(), points, style, ranges: Vec::new() }
    }

    fn throughput(&self) -> Chart {
        let each = 1000.0 / self.conditions.interval_ms as f64;
        let mut series = vec![
            self.series("answered", Style::Measured, |row| row.messages_per_s),
            self.series("asked for", Style::Reference, |row| row.connections as f64 * each),
        ];
        if let Some(peak) = &self.peak {
            series.push(self.series("peak", Style::Reference, |_| peak.messages_per_s));
        }
        Chart {
            title: "Messages answered in each second, beside the messages that were asked for".into(),
            form: Form::Lines,
            x: self.connections(),
            y: Axis { label: "messages/s".into(), scale: Scale::Logarithmic, ticks: Vec::new() },
            series,
        }
    }

    fn latency(&self) -> Chart {
        Chart {
            title: "Latency by connections".into(),
            form: Form::Lines,
            x: self.connections(),
            y: Axis { label: "ms".into(), scale: Scale::Logarithmic, ticks: Vec::new() },
            series: vec![
                self.series("p50", Style::Measured, |row| row.p50_us as f64 / 1e3),
                self.series("mean", Style::Measured, |row| row.mean_us / 1e3),
                self.series("p99", Style::Measured, |row| row.quantile(0.99).map_or(f64::NAN, |us| us as f64 / 1e3)),
                self.series("p99.9", Style::Measured, |row| row.quantile(0.999).map_or(f64::NAN, |us| us as f64 / 1e3)),
                self.series("max", Style::Measured, |row| row.max_us as f64 / 1e3),
            ],
        }
    }

    /// Draws the quantiles of a few rows, first, last and between.
    fn distribution(&self) -> Chart {
        let last = self.rows.len().saturating_sub(1);
        let mut chosen: Vec<usize> = (0..=3).map(|part| last * part / 3).collect();
        chosen.dedup();
        let series = chosen.into_iter().filter_map(|index| self.rows.get(index)).map(|row| {
            let known = QUANTILES.iter().zip(&row.quantiles_us);
            // A row with a hundred requests has no information about one in a thousand.
            let known = known.filter(|(quantile, _)| requests_for(**quantile) <= row.answered.max(1) as f64);
            let points = known.map(|(quantile, us)| (requests_for(*quantile), *us as f64 / 1e3));
            let name = format!("{} connection{}", row.connections, if row.connections == 1 { "" } else { "s" });
            PlottedSeries { name, points: points.collect(), ..PlottedSeries::default() }
        });
        let most = self.rows.iter().map(|row| row.answered).max().unwrap_or(1).max(2) as f64;
        Chart {
            title: "Latency by share of the requests".into(),
            form: Form::Lines,
            x: Axis {
                label: "share of the requests that took no longer".into(),
                scale: Scale::Logarithmic,
                ticks: [0.5, 0.9, 0.99, 0.999, 0.9999]
                    .into_iter()
                    .filter(|quantile| requests_for(*quantile) <= most)
                    .map(|quantile| (requests_for(quantile), format!("{} %", (quantile * 1e4).round() / 100.0)))
                    .collect(),
            },
            y: Axis { label: "ms".into(), scale: Scale::Logarithmic, ticks: Vec::new() },
            series: series.collect(),
        }
    }

    /// Formats the figures as a page.
    pub fn html(&self) -> String {
        let mut page = page::head("COPS serves matrices");
        self.write_verdict(&mut page);
        self.write_charts(&mut page);
        self.write_rows(&mut page);
        self.write_conditions(&mut page);
        page + page::FOOT
    }

    /// Writes the heading, the verdict and the most important figures.
    fn write_verdict(&self, page: &mut String) {
        let answered: u64 = self.all().map(|row| row.answered).sum();
        let faulty: u64 = self.all().map(|row| row.wrong + row.lost).sum();
        let (verdict, class) = if self.is_faultless() {
            (format!("All {} requests were answered, and every answer was verified.", count(answered)), "good")
        } else {
            (format!("{} requests were answered rightly; {} were not.", count(answered), count(faulty)), "bad")
        };
        let _ = writeln!(page, "<h1>COPS serves matrices</h1>\n<p class=\"verdict {class}\">{}</p>", escape(&verdict));
        let best = self.rows.iter().map(|row| row.messages_per_s).fold(0.0, f64::max);
        let tiles = [
            ("first answer after", duration_us(self.conditions.boot_to_first_answer_s * 1e6)),
            ("p50, one connection", self.rows.first().map_or("-".into(), |row| duration_us(row.p50_us as f64))),
            match &self.peak {
                Some(peak) => ("most messages/s, without pauses", figure(peak.messages_per_s)),
                None => ("messages/s, of all that were asked for", figure(best)),
            },
        ];
        *page += "<div class=\"tiles\">\n";
        for (name, value) in tiles {
            let _ = writeln!(page, "<div><b>{}</b><span>{}</span></div>", escape(&value), escape(name));
        }
        *page += "</div>\n";
    }

    /// Writes the charts, each with a note.
    fn write_charts(&self, page: &mut String) {
        let charts = [
            (
                self.throughput(),
                "The dashed line is the load that the clients offered: one request on each connection in each interval. Where the measured line leaves it, the machine is at its limit.",
            ),
            (
                self.latency(),
                "From the moment a client hands over a request to the moment its whole answer has arrived, with the emulator's network and the host's in between.",
            ),
            (
                self.distribution(),
                "The further to the right, the rarer: at 99 % is the latency that one request in a hundred exceeds.",
            ),
        ];
        *page += "<section><h2>Charts</h2>";
        *page += &page::charts(charts.iter().map(|(chart, _)| chart), "demo");
        for (chart, note) in &charts {
            let _ = writeln!(page, "<p class=\"note\"><b>{}.</b> {}</p>", escape(&chart.title), escape(note));
        }
        *page += "</section>\n";
    }

    /// Writes the table of all rows.
    fn write_rows(&self, page: &mut String) {
        *page += "<section><h2>Figures</h2>";
        // Rarer latencies stand before the largest.
        let mut headings = Self::HEADINGS.to_vec();
        let mut rows = self.table_rows();
        let largest = 5;
        for (place, (heading, quantile)) in [("p99.9", 0.999), ("p99.99", 0.9999)].into_iter().enumerate() {
            headings.insert(largest + place, heading);
            for (cells, row) in rows.iter_mut().zip(self.all()) {
                let cell = row.quantile(quantile).map_or_else(|| "-".into(), |us| duration_us(us as f64));
                cells.insert(largest + place, cell);
            }
        }
        *page += &page::table(&headings, &rows);
        *page += "</section>\n";
    }

    /// Writes the conditions of the measurement.
    fn write_conditions(&self, page: &mut String) {
        let conditions = &self.conditions;
        *page += "<section><h2>Conditions</h2><dl>\n";
        let order = conditions.matrix_order;
        let lines = [
            ("Commit", conditions.commit.clone()),
            ("Machine", format!("{}, {} harts, {} of memory", conditions.machine, conditions.harts, conditions.memory)),
            ("Emulator", format!("{} on {} host cores", conditions.emulator, conditions.host_cores)),
            (
                "Load",
                format!(
                    "{order} by {order} matrices, one request each {} ms on every connection for {} s; \
                     the client computes every product itself and compares every element",
                    conditions.interval_ms,
                    figure(conditions.duration_s)
                ),
            ),
        ];
        for (name, value) in lines {
            let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
        }
        *page += "</dl><p class=\"note\">Wall-clock figures of an emulated machine that shares its host's cores with the \
                  client. Compare them only within one run; <code>cargo xtask bench</code> counts instructions, \
                  which repeat.</p></section>\n";
    }
}

/// Returns the commit that is checked out, with a mark if files have been changed since. Results that were recorded are
/// no change: one follows the other.
pub fn commit(root: &std::path::Path) -> String {
    let git = |arguments: &[&str]| {
        let mut command = crate::children::command("git");
        command.current_dir(root).args(arguments);
        let output = crate::children::output(&mut command, crate::children::Ending::Kill, Duration::from_secs(20));
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/results"]);
    if changed.is_none_or(|files| !files.is_empty()) { commit + "+" } else { commit }
}

/// A page as a demonstration makes it, with values of no machine.
#[cfg(test)]
pub fn page_of_an_example() -> String {
    tests::example().html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Histogram;

    fn measurement(connections: usize, latencies: &[u64], lost: u64) -> Measurement {
        let mut latency_us = Histogram::new_with_max(600_000_000, 3).unwrap();
        for latency in latencies {
            latency_us.record(*latency).unwrap();
        }
        Measurement {
            connections,
            answered: latencies.len() as u64,
            wrong: 0,
            lost,
            elapsed: Duration::from_secs(2),
            latency_us,
            levels: Vec::new(),
            first_failure: None,
        }
    }

    fn report(lost: u64) -> ReportPage {
        ReportPage {
            rows: vec![
                Row::new(&measurement(1, &[100, 200, 300, 1000], 0)),
                Row::new(&measurement(16, &[50; 100], lost)),
            ],
            peak: Some(Row::new(&measurement(16, &[70; 4000], 0))),
            conditions: Conditions {
                commit: "abc<1>".into(),
                machine: "qemu-virt aia".into(),
                harts: 4,
                memory: "1G".into(),
                emulator: "QEMU".into(),
                host_cores: 2,
                boot_to_first_answer_s: 1.5,
                matrix_order: 15,
                interval_ms: 100,
                duration_s: 2.0,
            },
        }
    }

    /// A demonstration in full: the connections double, and latencies reach from 0.2 ms to seconds.
    pub fn example() -> ReportPage {
        let row = |connections: usize| {
            let latencies: Vec<u64> =
                (0..20_000u64).map(|n| 200 + n % 1000 + (connections as u64) * (n * n % 7919) / 20).collect();
            Row::new(&measurement(connections, &latencies, 0))
        };
        ReportPage { rows: (0..=10).map(|power| row(1 << power)).collect(), ..report(0) }
    }

    #[test]
    fn rows_are_the_figures_of_their_measurement() {
        let row = &report(0).rows[0];
        assert_eq!((row.connections, row.messages_per_s, row.answered), (1, 2.0, 4));
        assert_eq!((row.mean_us, row.p50_us, row.p99_us, row.max_us), (400.0, 200, 1000, 1000));
        assert_eq!((row.wrong, row.lost), (0, 0));
    }

    #[test]
    fn json_has_the_promised_shape() {
        let json: serde_json::Value = serde_json::from_str(&report(0).json()).unwrap();
        let row = json["rows"][0].as_object().unwrap();
        for key in ["connections", "messages_per_s", "mean_us", "p50_us", "p99_us", "max_us", "wrong", "lost"] {
            assert!(row[key].is_number(), "{key}");
        }
        assert_eq!(json["rows"].as_array().unwrap().len(), 2);
        assert_eq!(json["peak"]["messages_per_s"], 2000.0);
        assert_eq!(json["conditions"]["harts"], 4);
    }

    #[test]
    fn tables_and_pages_say_whether_all_went_well() {
        let table = report(0).table();
        assert!(table.contains("16 closed-loop") && table.contains("2,000"), "{table}");
        assert!(report(0).is_faultless() && !report(3).is_faultless());
        let page = report(0).html();
        assert!(page.contains("All 4,104 requests were answered"), "{page}");
        assert!(page.contains("abc&lt;1&gt;") && !page.contains("=\"http"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(report(3).html().contains("3 were not"));
    }

    #[test]
    fn a_row_without_answers_has_no_latency() {
        let row = Row::new(&measurement(4, &[], 8));
        assert_eq!(row.cells("4".into()), ["4", "0", "-", "-", "-", "-", "0", "8"]);
        let few = Row::new(&measurement(1, &[100, 200, 300, 1000], 0));
        assert_eq!(few.cells("1".into())[4], "-", "four requests have no slowest hundredth");
        assert!(report(0).html().contains("data-name=\"p99.9\">70 µs"), "4,000 requests have a slowest thousandth");
        let report = ReportPage { rows: vec![row], peak: None, ..report(0) };
        assert!(!report.is_faultless());
        assert!(!report.html().contains("NaN"));
    }
}
