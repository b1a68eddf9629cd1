//! Progress messages: a line that moves on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Time between two lines about an activity of known length, where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// The place of progress messages: standard error; standard output is for results.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    /// Whether the output of other programs is shown rather than summed up.
    pub verbose: bool,
    /// The lines of all activities: there may be several at once.
    bars: MultiProgress,
}

/// One activity that is shown.
#[derive(Debug)]
pub struct Activity {
    bar: Option<ProgressBar>,
    bars: MultiProgress,
    title: String,
    /// The lines about its progress where there is no bar, if its length is known.
    pace: Option<Mutex<Pace>>,
}

/// The speed of an activity of known length.
#[derive(Debug)]
struct Pace {
    steps: u64,
    begin: Instant,
    /// Time from the beginning after which the next line is due.
    next: Duration,
}

impl Pace {
    fn new(steps: u64) -> Pace {
        Pace { steps, begin: Instant::now(), next: BETWEEN_LINES }
    }

    /// Returns the part that is done and the time that is left, if a line is due at this time after the beginning.
    fn line(&mut self, step: u64, elapsed: Duration) -> Option<String> {
        if elapsed < self.next {
            return None;
        }
        self.next = elapsed + BETWEEN_LINES;
        let step = step.min(self.steps);
        if step == 0 {
            return Some("0 %".into());
        }
        let part = step as f64 / self.steps as f64;
        let left = elapsed.mul_f64((1.0 - part) / part).as_secs();
        Some(format!("{:.0} %, {} min {:02} s left", part * 100.0, left / 60, left % 60))
    }
}

impl Progress {
    /// Finds out whether standard error is a terminal.
    pub fn new(verbose: bool) -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), verbose, bars: MultiProgress::new() }
    }

    /// Starts an activity of unknown length.
    pub fn start(&self, title: impl Into<String>) -> Activity {
        let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed:>4} {wide_msg:.dim}");
        self.activity(title.into(), ProgressBar::new_spinner(), style, None)
    }

    /// Starts an activity that takes `steps` of [`Activity::advance_to`]. Without a terminal a line tells each minute
    /// how far it is.
    pub fn start_steps(&self, title: impl Into<String>, steps: u64) -> Activity {
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {percent:>3} %, {eta} left  {wide_msg}");
        let style = style.map(|style| style.progress_chars("=> "));
        self.activity(title.into(), ProgressBar::new(steps), style, Some(Pace::new(steps)))
    }

    fn activity(
        &self,
        title: String,
        bar: ProgressBar,
        style: Result<ProgressStyle, indicatif::style::TemplateError>,
        pace: Option<Pace>,
    ) -> Activity {
        let pace = pace.map(Mutex::new);
        if !self.terminal || self.verbose {
            eprintln!("{title}");
            return Activity { bar: None, bars: self.bars.clone(), title, pace };
        }
        let bar = self.bars.add(bar);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(title.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
        Activity { bar: Some(bar), bars: self.bars.clone(), title, pace }
    }
}

impl Activity {
    /// Shows the current step of the activity, on a terminal.
    pub fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.trim().to_string());
        }
    }

    /// Shows the progress of a [`Progress::start_steps`] activity.
    pub fn advance_to(&self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        } else if let Some(Ok(mut pace)) = self.pace.as_ref().map(Mutex::lock) {
            let elapsed = pace.begin.elapsed();
            if let Some(line) = pace.line(step, elapsed) {
                eprintln!("{}: {line}", self.title);
            }
        }
    }

    /// Ends the activity and leaves one line with its result.
    pub fn finish(mut self, result: &str) {
        let line = format!("{}: {result}", self.title);
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.bars.suspend(|| eprintln!("{line}"));
    }

    /// Ends the activity and leaves no line.
    pub fn clear(self) {}
}

impl Drop for Activity {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_each_minute_tells_the_part_and_the_time_that_is_left() {
        let mut pace = Pace::new(400);
        let mut at = |step, seconds| pace.line(step, Duration::from_secs(seconds));
        assert_eq!(at(50, 59), None);
        assert_eq!(at(100, 60).as_deref(), Some("25 %, 3 min 00 s left"));
        assert_eq!(at(101, 119), None);
        assert_eq!(at(300, 150).as_deref(), Some("75 %, 0 min 50 s left"));
        assert_eq!(at(500, 300).as_deref(), Some("100 %, 0 min 00 s left"), "it takes longer than was expected");
    }

    #[test]
    fn an_activity_without_steps_has_no_time_that_is_left() {
        assert_eq!(Pace::new(0).line(0, BETWEEN_LINES).as_deref(), Some("0 %"));
        assert_eq!(Pace::new(10).line(0, BETWEEN_LINES).as_deref(), Some("0 %"));
    }
}
