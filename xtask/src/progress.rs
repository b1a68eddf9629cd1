//! Progress messages: a line that moves on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

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
}

impl Progress {
    /// Finds out whether standard error is a terminal.
    pub fn new(verbose: bool) -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), verbose, bars: MultiProgress::new() }
    }

    /// Starts an activity of unknown length.
    pub fn start(&self, title: impl Into<String>) -> Activity {
        let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed:>4} {wide_msg:.dim}");
        self.activity(title.into(), ProgressBar::new_spinner(), style)
    }

    /// Starts an activity that takes `steps` of [`Activity::advance_to`].
    pub fn start_steps(&self, title: impl Into<String>, steps: u64) -> Activity {
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {percent:>3} %, {eta} left  {wide_msg}");
        self.activity(title.into(), ProgressBar::new(steps), style.map(|style| style.progress_chars("=> ")))
    }

    fn activity(
        &self,
        title: String,
        bar: ProgressBar,
        style: Result<ProgressStyle, indicatif::style::TemplateError>,
    ) -> Activity {
        if !self.terminal || self.verbose {
            eprintln!("{title}");
            return Activity { bar: None, bars: self.bars.clone(), title };
        }
        let bar = self.bars.add(bar);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(title.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
        Activity { bar: Some(bar), bars: self.bars.clone(), title }
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
