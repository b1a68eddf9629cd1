//! The prose of the tree as far as a program can judge it: width, first words, glossary, decision records.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::structure::{Source, WIDTH};

/// First words in the place of a sentence's subject.
const BANNED_OPENINGS: [&str; 5] = ["What", "Who", "Whoever", "That which", "The same"];

/// Pages that a program prints; their tables and signatures keep their lines.
pub const GENERATED: [&str; 2] = ["docs/calls.md", "docs/sel4-calls.md"];

const GLOSSARY: &str = "docs/words.md";
const GLOSSARY_LIMIT: usize = 60;
const SUMMARY: &str = "docs/SUMMARY.md";
const DECISIONS: &str = "docs/decisions";

/// Returns the objections to the comments of all sources and to all documents.
///
/// # Errors
///
/// The folder of the decision records cannot be read.
pub fn objections(root: &Path, files: &[Source]) -> Result<Vec<String>> {
    let mut objections = Vec::new();
    for Source { path, text } in files.iter().filter(|file| !GENERATED.contains(&file.path.as_str())) {
        objections.extend(wide_lines(path, text));
        objections.extend(banned_openings(path, text));
    }
    let text_of = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    objections.extend(glossary_objections(text_of(GLOSSARY), files));
    let folder = root.join(DECISIONS);
    let mut records = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        records.push(format!("{DECISIONS}/{}", entry?.file_name().to_string_lossy()));
    }
    records.sort();
    for record in &records {
        objections.extend(record_objections(record, text_of(record), text_of(SUMMARY)));
    }
    Ok(objections)
}

/// Returns the prose in a line: a comment's text in Rust, every line of a document.
fn prose<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let line = line.trim_start();
    if !path.ends_with(".rs") {
        return Some(line);
    }
    let text = line.strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim_start())
}

fn wide_lines(path: &str, text: &str) -> Vec<String> {
    let is_wide = |line: &str| {
        // Rows of a document's tables cannot be wrapped.
        let is_row = !path.ends_with(".rs") && line.trim_start().starts_with('|');
        line.chars().count() > WIDTH && prose(path, line).is_some() && !is_row
    };
    let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
    wide.map(|(number, _)| format!("{path}:{}: the line is wider than {WIDTH} columns", number + 1)).collect()
}

/// Joins the lines of each paragraph or list item, with the number of its first line.
fn paragraphs(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut is_code) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let Some(prose) = prose(path, line) else {
            (is_open, is_code) = (false, false);
            continue;
        };
        let is_fence = prose.starts_with("```");
        if is_fence || is_code || prose.is_empty() {
            is_code ^= is_fence;
            is_open = false;
            continue;
        }
        let item = ["* ", "- ", "# ", "## ", "### ", "| "].iter().find_map(|mark| prose.strip_prefix(mark));
        match (item, paragraphs.last_mut()) {
            (None, Some((_, open))) if is_open => {
                open.push(' ');
                open.push_str(prose.trim_end());
            }
            _ => paragraphs.push((number + 1, item.unwrap_or(prose).trim_end().into())),
        }
        is_open = true;
    }
    paragraphs
}

fn banned_openings(path: &str, text: &str) -> Vec<String> {
    let mut objections = Vec::new();
    for (line, paragraph) in paragraphs(path, text) {
        let sentences = paragraph.split(". ").flat_map(|part| part.split("? "));
        for sentence in sentences {
            let is_banned = |opening: &&&str| {
                let after = sentence.trim_start().strip_prefix(**opening);
                after.is_some_and(|after| !after.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
            };
            if let Some(opening) = BANNED_OPENINGS.iter().find(is_banned) {
                objections.push(format!("{path}:{line}: a sentence begins with \"{opening}\", not with its subject"));
            }
        }
    }
    objections
}

/// Returns the terms of the glossary, the bold words in the first cells of its tables, with the number of rows that
/// define each.
fn terms(glossary: &str) -> BTreeMap<String, usize> {
    let mut terms = BTreeMap::new();
    for line in glossary.lines() {
        let Some(cell) = line.strip_prefix("| **").and_then(|rest| rest.split_once("**")) else { continue };
        for term in cell.0.split(", ") {
            *terms.entry(term.to_lowercase()).or_default() += 1;
        }
    }
    terms
}

fn glossary_objections(glossary: &str, files: &[Source]) -> Vec<String> {
    let terms = terms(glossary);
    let mut objections = Vec::new();
    let entries = glossary.lines().filter(|line| line.starts_with("| **")).count();
    if !(1..=GLOSSARY_LIMIT).contains(&entries) {
        objections.push(format!("{GLOSSARY} has {entries} entries; it should have 1 to {GLOSSARY_LIMIT}"));
    }
    let mut others =
        files.iter().filter(|file| file.path != GLOSSARY).map(|file| words(&file.text)).collect::<String>();
    others.push(' ');
    for (term, rows) in &terms {
        if *rows > 1 {
            objections.push(format!("{GLOSSARY} defines `{term}` {rows} times"));
        }
        // Also in the plural.
        if !["", "s", "es"].iter().any(|ending| others.contains(&format!(" {}{ending} ", words(term).trim()))) {
            objections.push(format!("{GLOSSARY} defines `{term}`, which nothing else uses"));
        }
    }
    objections
}

/// Returns the words of a text in lower case, each after one space.
fn words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.map(|word| format!(" {}", word.to_lowercase())).collect()
}

/// A decision record has its status and date in the paragraph behind its title, and is listed in the summary.
fn record_objections(path: &str, text: &str, summary: &str) -> Vec<String> {
    let mut objections = Vec::new();
    let status = text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
    let is_date = |word: &str| {
        let word = word.trim_end_matches(['.', ',', '*']);
        let parts = word.split('-').map(|part| (part.len(), part.bytes().all(|byte| byte.is_ascii_digit())));
        parts.eq([(4, true), (2, true), (2, true)])
    };
    if !status.starts_with("*Status: ") || !status.split(' ').any(is_date) {
        objections
            .push(format!("{path}: the line behind the title is no status with a date, `*Status: … YYYY-MM-DD.*`"));
    }
    let link = format!("({})", path.strip_prefix("docs/").unwrap_or(path));
    if !summary.contains(&link) {
        objections.push(format!("{path} is not listed in {SUMMARY}"));
    }
    objections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_and_lines_of_documents_are_found() {
        let long = "x".repeat(WIDTH);
        let source = format!("// {long}\nlet code = \"{long}\";\n/// short\n");
        assert_eq!(wide_lines("a.rs", &source), ["a.rs:1: the line is wider than 120 columns"]);
        let document = format!("{long}\n{long}x\n| {long} |\n");
        assert_eq!(wide_lines("a.md", &document), ["a.md:2: the line is wider than 120 columns"]);
    }

    #[test]
    fn sentences_without_a_subject_are_found_wherever_they_begin() {
        let source = "/// What it is. It is\n/// good. Who knows? The same again\n\
                      fn what() {}\n// Whatever and Whose are words.\n// * That which ends\n";
        let found = banned_openings("a.rs", source);
        let openings = [(1, "What"), (1, "Who"), (1, "The same"), (5, "That which")];
        let wanted = openings
            .map(|(line, opening)| format!("a.rs:{line}: a sentence begins with \"{opening}\", not with its subject"));
        assert_eq!(found, wanted);
        let document = "# Title\n\nText about what.\n\n```text\nWhat in code\n```\n\n* What in a list\n";
        assert_eq!(banned_openings("a.md", document).len(), 1);
    }

    #[test]
    fn terms_are_defined_once_and_used() {
        let glossary = "| term | meaning | elsewhere |\n|---|---|---|\n| **ready set** | x | |\n| **Slot** | x | |\n\
                        | **slot** | y | |\n| **unused** | z | |\n| **strict, relaxed** | z | |\n";
        let files = [(GLOSSARY, glossary), ("a.rs", "// ready\n// sets slot strict relaxed")];
        let files = files.map(|(path, text)| Source { path: path.into(), text: text.into() });
        let found = glossary_objections(glossary, &files);
        let wanted =
            ["docs/words.md defines `slot` 2 times", "docs/words.md defines `unused`, which nothing else uses"];
        assert_eq!(found, wanted);
        assert_eq!(glossary_objections("", &files).len(), 1);
    }

    #[test]
    fn records_have_a_status_and_stand_in_the_summary() {
        let path = "docs/decisions/001-x.md";
        let good = "# 001: X\n\n*Status: in force since 2026-01-02.*\n\nText\n";
        assert!(record_objections(path, good, "* [001: X](decisions/001-x.md)").is_empty());
        assert_eq!(record_objections(path, good, "nothing").len(), 1);
        for bad in ["# 001: X\n\nText 2026-01-02\n", "# 001: X\n\n*Status: in force.*\n", ""] {
            assert_eq!(record_objections(path, bad, "(decisions/001-x.md)").len(), 1, "{bad:?}");
        }
    }
}
