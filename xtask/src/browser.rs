//! Pages, looked at in a real browser.
//!
//! A page that reads well as a text can have labels on top of each other, or cut off at an edge. Chromium without a
//! window opens it in three widths, light and dark; a script measures the boxes of all texts and reports what overlaps,
//! is cut, too small or too faint to read. The script is in the copy that is looked at and not in the page itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Ending};
use crate::toolchain;

/// Names of the browsers that can be used.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Widths of the window: wide screen, tablet, telephone.
pub const WIDTHS: [u32; 3] = [1400, 800, 500];

/// Longest time of a look, on a busy host.
const LIMIT: Duration = Duration::from_secs(180);

/// The colours of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// As by day.
    Light,
    /// As readers who prefer dark pages have it.
    Dark,
}

/// Both, in the order of looking.
pub const COLOURS: [Colours; 2] = [Colours::Light, Colours::Dark];

/// Returns the path of a browser, if there is one.
pub fn find() -> Option<PathBuf> {
    BROWSERS.iter().find_map(|name| toolchain::find_program(name))
}

/// The condition under which the page is dark. Browsers without a window always prefer light.
const PREFERENCE: &str = "@media screen and (prefers-color-scheme: dark)";

fn in_colours(page: &str, colours: Colours) -> String {
    match colours {
        Colours::Light => page.to_string(),
        Colours::Dark => {
            page.replace(PREFERENCE, "@media all").replace("color-scheme: light dark;", "color-scheme: dark;")
        }
    }
}

/// The script that measures: everything folded is unfolded first.
const SCRIPT: &str = r#"<script>
addEventListener('load', () => {
  const faults = [];
  const name = element => element.textContent.trim().slice(0, 60);
  const light = colour => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    const linear = parts.slice(0, 3).map(part => part / 255).map(part => part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => { const both = [light(one), light(other)].sort((a, b) => a - b); return (both[1] + 0.05) / (both[0] + 0.05); };
  document.querySelectorAll('details').forEach(details => details.open = true);
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth + 1) faults.push(`the page is wider than the window: ${root.scrollWidth}`);
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const title = svg.getAttribute('aria-label');
    const ground = getComputedStyle(svg.closest('section') || document.body).backgroundColor;
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    for (const [text, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`${title}: cut: ${name(text)}`);
      const size = parseFloat(getComputedStyle(text).fontSize) * frame.width / svg.viewBox.baseVal.width;
      if (size < 9) faults.push(`${title}: ${size.toFixed(1)} pixels high: ${name(text)}`);
      if (contrast(getComputedStyle(text).fill, ground) < 4.5) faults.push(`${title}: too faint: ${name(text)}`);
    }
    texts.forEach(([text, box], number) => {
      for (const [other, its] of texts.slice(number + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > 4) faults.push(`${title}: ${name(text)} lies over ${name(other)}`);
      }
    });
  }
  for (const element of document.querySelectorAll('h1, h2, p, li, td, th, dt, dd, figcaption, summary, .tiles div, .scroll'))
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1) faults.push(`cut: ${name(element)}`);
  for (const element of document.querySelectorAll('p, li, td, h1, h2, summary')) {
    const ground = getComputedStyle(element.closest('section, .tiles div') || document.body).backgroundColor;
    if (contrast(getComputedStyle(element).color, ground) < 4.5) faults.push(`too faint: ${name(element)}`);
  }
  const list = document.createElement('pre');
  list.id = 'faults';
  list.textContent = JSON.stringify(faults);
  document.body.append(list);
});
</script>
"#;

/// Beginning and end of the list of faults in what the browser prints.
const LIST: (&str, &str) = ("<pre id=\"faults\">", "</pre>");

/// A browser with a directory for its files, which is removed in the end.
pub struct Browser {
    program: PathBuf,
    directory: PathBuf,
}

impl Browser {
    /// Makes a browser ready that keeps its files in a directory of this name among the temporary ones.
    ///
    /// # Errors
    ///
    /// The directory cannot be made.
    pub fn new(program: PathBuf, name: &str) -> Result<Browser> {
        let directory = std::env::temp_dir().join(format!("cops-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        Ok(Browser { program, directory })
    }

    fn open(&self, page: &str, width: u32, height: u32, more: &[&str]) -> Result<(String, String)> {
        let file = self.directory.join("page.html");
        std::fs::write(&file, page)?;
        let mut command = children::command(&self.program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]);
        command.arg(format!("--user-data-dir={}", self.directory.join("profile").display()));
        command.arg(format!("--window-size={width},{height}")).args(more).arg(format!("file://{}", file.display()));
        let output = children::output(&mut command, Ending::Kill, LIMIT)
            .with_context(|| format!("{} did not come to its end", self.program.display()))?;
        let [said, complained] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        if !output.status.success() {
            bail!("{} failed:\n{}", self.program.display(), complained.trim());
        }
        Ok((said, complained))
    }

    /// Returns the faults of a page in a window of this width.
    ///
    /// # Errors
    ///
    /// The browser failed, or the script did not run.
    pub fn faults(&self, page: &str, width: u32, colours: Colours) -> Result<Vec<String>> {
        let page = in_colours(page, colours).replacen("</head>", &format!("{SCRIPT}</head>"), 1);
        let (printed, complained) = self.open(&page, width, 1000, &["--dump-dom"])?;
        let list = printed.rsplit_once(LIST.0).and_then(|(_, rest)| Some(rest.split_once(LIST.1)?.0));
        let list = list.context("the browser did not run the script that measures")?;
        let list = list.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let mut faults: Vec<String> = serde_json::from_str(&list).context("the list of faults is no list")?;
        faults.extend(complained.lines().filter(|line| line.contains("CONSOLE")).map(str::to_string));
        Ok(faults)
    }

    /// Writes a picture of a page to a file.
    ///
    /// # Errors
    ///
    /// The browser failed, or made no picture.
    pub fn picture(&self, page: &str, width: u32, height: u32, colours: Colours, file: &Path) -> Result<()> {
        let picture = format!("--screenshot={}", file.display());
        self.open(&in_colours(page, colours), width, height, &[&picture])?;
        if !file.is_file() {
            bail!("{} made no picture {}", self.program.display(), file.display());
        }
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Files that remain are only in the way.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Looks at a page in windows of these widths and colours, and leaves pictures `NAME-WIDTH-COLOURS.png` in a directory.
///
/// # Errors
///
/// The browser failed, or the page has faults, which the error lists.
pub fn look(
    program: &Path,
    name: &str,
    page: &str,
    looks: impl IntoIterator<Item = (u32, Colours)>,
    pictures: Option<&Path>,
) -> Result<()> {
    let browser = Browser::new(program.to_path_buf(), name)?;
    let mut found = Vec::new();
    for (width, colours) in looks {
        let faults = browser.faults(page, width, colours)?;
        found.extend(faults.into_iter().map(|fault| format!("{name}, {width} pixels, {colours:?}: {fault}")));
        if let Some(directory) = pictures {
            std::fs::create_dir_all(directory)?;
            // The browser runs elsewhere, so it needs the whole path.
            let directory = directory.canonicalize()?;
            let file = directory.join(format!("{name}-{width}-{}.png", format!("{colours:?}").to_lowercase()));
            browser.picture(page, width, PICTURE_HEIGHT, colours, &file)?;
        }
    }
    if found.is_empty() { Ok(()) } else { bail!("{}", found.join("\n")) }
}

/// Returns each width in both colours.
pub fn all_looks() -> impl Iterator<Item = (u32, Colours)> {
    WIDTHS.into_iter().flat_map(|width| COLOURS.map(|colours| (width, colours)))
}

/// Height of pictures, in pixels: the beginning of a page.
const PICTURE_HEIGHT: u32 = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dark_pages_are_dark_for_browsers_that_prefer_light() {
        let page = crate::page::head("x");
        assert!(page.contains(PREFERENCE), "the condition of the style sheet is the one that is replaced");
        assert_eq!(in_colours(&page, Colours::Light), page);
        assert!(!in_colours(&page, Colours::Dark).contains("prefers-color-scheme"));
    }

    #[test]
    fn faults_of_a_bad_page_are_found() {
        let Some(program) = find() else { return eprintln!("left out: there is no chromium") };
        let bad = format!(
            "{}<section><p style=\"color:var(--card)\">faint</p><svg viewBox=\"0 0 480 100\" aria-label=\"bad\">\
             <text x=\"10\" y=\"20\" font-size=\"12\" fill=\"var(--text)\">first</text>\
             <text x=\"14\" y=\"22\" font-size=\"12\" fill=\"var(--text)\">second</text>\
             <text x=\"470\" y=\"60\" font-size=\"12\" fill=\"var(--text)\">too long</text>\
             <text x=\"10\" y=\"90\" font-size=\"3\" fill=\"var(--text)\">small</text></svg></section>\
             <script>console.error('a complaint')</script>{}",
            crate::page::head("x"),
            crate::page::FOOT
        );
        let browser = Browser::new(program, "bad").unwrap();
        let faults = browser.faults(&bad, 500, Colours::Light).unwrap().join("\n");
        for fault in
            ["first lies over second", "cut: too long", "pixels high: small", "too faint: faint", "a complaint"]
        {
            assert!(faults.contains(fault), "{fault} is not among\n{faults}");
        }
    }

    #[test]
    fn both_pages_can_be_read_in_every_width_and_both_colours() {
        let Some(program) = find() else { return eprintln!("left out: there is no chromium") };
        let pictures = std::env::var_os("COPS_PICTURES").map(PathBuf::from);
        let pictures = pictures.as_deref();
        look(&program, "demo", &crate::report::page_of_an_example(), all_looks(), pictures).unwrap();
        // The report is large; `cargo xtask check pages` takes all looks at it.
        let looks = [(1400, Colours::Light), (800, Colours::Dark), (500, Colours::Light)];
        look(&program, "report", &crate::results::page_of_the_source(), looks, pictures).unwrap();
    }
}
