//! Pages in one file: their head with the styles, and charts with their downloads.
//!
//! A page needs no network and no scripts: drawings stand in it, downloads are addresses with the data in them.

use std::fmt::Write;

use crate::chart::{Chart, escape};
use crate::systems;

/// Returns the beginning of a page, up to its content.
pub fn head(title: &str) -> String {
    let dark = |selector: &str| format!("{selector} {{ {DARK} {} }}", systems::variables(true));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>\n\
         :root {{ color-scheme: light dark; {LIGHT} {} }}\n@media screen and (prefers-color-scheme: dark) {{ {} }}\n\
         {STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape(title),
        systems::variables(false),
        dark(":root"),
    )
}

/// The end of a page.
pub const FOOT: &str = "</main>\n</body>\n</html>\n";

const LIGHT: &str = "--page: #f6f7f9; --card: #ffffff; --text: #1b1f27; --dim: #5d6675; --line: #d5dae2; \
                     --faint: #edf0f4; --good: #17714a; --even: #735c0f; --bad: #b3261e; --link: #0b5cad;";
const DARK: &str = "--page: #101318; --card: #181c23; --text: #e7eaf0; --dim: #9aa4b4; --line: #39424f; \
                    --faint: #232a34; --good: #56d19b; --even: #e0c25a; --bad: #ff8a80; --link: #7cc0ff;";

const STYLE: &str = r"* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1640px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 0 0 8px; }
p, li { max-width: 80ch; }
section, .tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
section { padding: 16px; margin-top: 18px; }
.verdict { font-size: 18px; margin: 0 0 18px; }
.good { color: var(--good); } .bad { color: var(--bad); } .even { color: var(--even); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; max-width: 900px; }
.tiles div { padding: 12px 16px; }
.tiles b { display: block; font-size: 24px; font-variant-numeric: tabular-nums; }
.tiles span, .note, dt { color: var(--dim); }
.note, .save, .contents { font-size: 14px; }
.contents a { display: inline-block; margin-right: 12px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(390px, 100%), 1fr)); gap: 16px 20px; align-items: start; }
figure { margin: 8px 0 0; max-width: 560px; min-width: 0; break-inside: avoid; }
figcaption { font-weight: 600; font-size: 14px; line-height: 1.35; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.save { margin: 2px 0 0; } .save a { margin-right: 12px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { overflow-wrap: anywhere; }
th { color: var(--dim); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
.words td, .words th { text-align: left; white-space: normal; }
.reasons { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(390px, 100%), 1fr)); gap: 0 28px; }
.reasons p { margin: 8px 0 0; }
.misses { margin: 4px 0 14px; padding-left: 20px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
details { margin-top: 8px; } summary { cursor: pointer; }
pre { overflow-x: auto; font-size: 12px; white-space: pre-wrap; word-break: break-word; }
a { color: var(--link); }
@media (max-width: 720px) {
  .stack thead { display: none; }
  .stack tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--line); }
  .stack td { display: flex; justify-content: space-between; gap: 16px; padding: 1px 0; border: 0; white-space: normal; text-align: right; }
  .stack td::before { content: attr(data-name); color: var(--dim); text-align: left; }
  .words.stack td { display: block; text-align: left; }
  .words.stack td::before { content: none; }
}
@media print {
  body { font-size: 11pt; } main { padding: 0; max-width: none; }
  .charts { grid-template-columns: 1fr 1fr; } .save, .contents { display: none; }
  section { border: 0; padding: 0; }
}
";

/// Charts beside each other, as many as have room.
pub fn charts<'a>(charts: impl IntoIterator<Item = &'a Chart>, file: &str) -> String {
    let mut html = String::from("<div class=\"charts\">\n");
    for (number, chart) in charts.into_iter().enumerate() {
        let name = format!("{file}-{}", number + 1);
        let _ = writeln!(
            html,
            "<figure id=\"{name}\"><figcaption>{}</figcaption>{}<p class=\"save\">\
             <a download=\"{name}.csv\" href=\"data:text/csv;charset=utf-8,{}\">CSV</a>\
             <a download=\"{name}.svg\" href=\"data:image/svg+xml;charset=utf-8,{}\">SVG</a></p></figure>",
            escape(&chart.title),
            chart.svg(),
            in_address(&chart.csv()),
            in_address(&chart.standalone()),
        );
    }
    html + "</div>\n"
}

/// A table whose rows stand below each other on a narrow screen, each value with its heading.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\"><table class=\"stack\"><thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th>{}</th>", escape(heading));
    }
    html += "</tr></thead><tbody>\n";
    for row in rows {
        html += "<tr>";
        for (heading, cell) in headings.iter().zip(row) {
            let _ = write!(html, "<td data-name=\"{}\">{}</td>", escape(heading), escape(cell));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

/// Text as HTML, with its words in backticks as code.
pub fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(
        |(number, part)| {
            if number % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }
        },
    );
    parts.collect()
}

/// Text as a part of an address: every byte that could end or change it is written by its number.
fn in_address(text: &str) -> String {
    let mut address = String::with_capacity(text.len() * 5 / 4);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'/'
            | b':'
            | b';'
            | b','
            | b'='
            | b'('
            | b')' => {
                address.push(char::from(byte));
            }
            other => {
                let _ = write!(address, "%{other:02X}");
            }
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_no_byte_that_ends_them() {
        assert_eq!(in_address("a \"b\"\n<c>#1%é"), "a%20%22b%22%0A%3Cc%3E%231%25%C3%A9");
    }

    #[test]
    fn words_in_backticks_are_code() {
        assert_eq!(prose("`ktut` tries <again>"), "<code>ktut</code> tries &lt;again&gt;");
        assert_eq!(prose("plain"), "plain");
    }

    #[test]
    fn pages_have_both_forms_of_their_colours() {
        let head = head("a & b");
        assert!(
            head.contains("<title>a &amp; b</title>") && head.contains("--c0:#0072b2") && head.contains("--c0:#56b4e9")
        );
        assert!(!head.contains("http"));
    }

    #[test]
    fn narrow_tables_name_their_values() {
        let html = table(&["name", "value"], &[vec!["a<".into(), "1".into()]]);
        assert!(html.contains("<td data-name=\"value\">1</td>") && html.contains("a&lt;"), "{html}");
    }
}
