//! `book`: the documents of the tree as a book of pages with a search, by mdBook.
//!
//! mdBook wants all chapters below one folder, its list of chapters at that folder's top, and links that lead to
//! chapters or to files beside them. The tree has documents where a reader of the sources looks for them, and links
//! from them to sources. So the book is made of a copy with the tree's own layout: the documents, the files that they
//! link to, and a list of chapters that follows from docs/SUMMARY.md. Links need no change then.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::run_cargo;
use crate::children::{self, Child, Ending};
use crate::cli;
use crate::context::Context;
use crate::progress::Progress;
use crate::{emulator, links, toolchain};

/// The release of mdBook that is installed where there is none.
const RELEASE: &str = "0.5.4";
/// Longest time of the making of the book.
const MAKING: Duration = Duration::from_secs(5 * 60);

/// The list of chapters, and the folder that its links are relative to.
const CHAPTERS: &str = "docs/SUMMARY.md";
const FOLDER: &str = "docs";
/// Its name, and its name in the book.
const CHAPTERS_NAME: &str = "SUMMARY.md";
const CONTENTS_NAME: &str = "contents.md";

const CONFIGURATION: &str = r#"[book]
title = "The COPS book"
language = "en"
src = "source"

[build]
build-dir = "pages"
# A README stays a page of its name, to which links lead.
use-default-preprocessors = false

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true

[output.html.search]
limit-results = 30
use-boolean-and = true
"#;

/// Makes the book, and serves it if requested.
///
/// # Errors
///
/// mdBook cannot be installed or refuses a document, or the port is taken.
pub fn book(context: &Context, arguments: &cli::Book) -> Result<()> {
    let mdbook = mdbook(&context.progress)?;
    let directory = context.workspace.products().join("book");
    copy(&context.workspace.root, &directory)?;
    let activity = context.progress.start("Making the book");
    let mut command = children::command(&mdbook);
    command.arg("build").arg(&directory);
    let output = children::output(&mut command, Ending::Kill, MAKING).context("mdBook did not end")?;
    activity.clear();
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("mdBook failed:\n{messages}");
    }
    // It goes on after an error in a chapter.
    if let Some(message) = messages.lines().find(|line| line.contains("ERROR")) {
        bail!("mdBook found an error: {message}");
    }
    println!("{}", directory.join("pages/index.html").display());
    let Some(port) = arguments.serve else { return Ok(()) };
    println!("http://127.0.0.1:{port} until Ctrl-C");
    let mut command = children::command(&mdbook);
    command.args(["serve", "--hostname", "127.0.0.1", "--port", &port.to_string()]).arg(&directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let status = Child::start(&mut command, Ending::Kill)?.wait()?;
    bail!("mdBook ended with {status}; port {port} may be taken: try `--serve PORT`");
}

/// Returns the program: the user's own, or the one in the cache, into which it is installed.
fn mdbook(progress: &Progress) -> Result<PathBuf> {
    if let Some(own) = toolchain::find_program("mdbook") {
        return Ok(own);
    }
    let root = emulator::cache()?.join(format!("mdbook-{RELEASE}"));
    let program = root.join("bin/mdbook");
    if program.exists() {
        return Ok(program);
    }
    let arguments = ["install", "mdbook", "--version", RELEASE, "--locked", "--no-default-features"];
    let arguments = [&arguments[..], &["--features", "search,serve"]].concat();
    if std::env::var_os("COPS_NO_INSTALL").is_some() {
        bail!("mdBook is missing; install it with: cargo {}", arguments.join(" "));
    }
    // An installation that is cut off goes on where it was.
    let build = root.join("build");
    let mut command = children::command("cargo");
    command.args(&arguments).arg("--root").arg(&root).arg("--target-dir").arg(&build);
    run_cargo(command, &format!("Installing mdBook {RELEASE} for the book, once"), progress)?;
    let _ = std::fs::remove_dir_all(&build);
    Ok(program)
}

/// Copies all that the book is made of; what an earlier book was made of goes.
fn copy(root: &Path, directory: &Path) -> Result<()> {
    let source = directory.join("source");
    match std::fs::remove_dir_all(&source) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", source.display()));
        }
        _ => {}
    }
    let mut chapters = chapters(&std::fs::read_to_string(root.join(CHAPTERS))?);
    let listed: BTreeSet<PathBuf> = chapters.iter().filter_map(|chapter| chapter.path.clone()).collect();
    for path in &listed {
        place(root, &source, path)?;
        let copied = source.join(path);
        let text = std::fs::read_to_string(&copied)?;
        if text.contains(CHAPTERS_NAME) {
            std::fs::write(&copied, text.replace(CHAPTERS_NAME, CONTENTS_NAME))?;
        }
    }
    // Documents have links to the list, which has words of its own; mdBook makes no page of a file of its name.
    let contents = Path::new(FOLDER).join(CONTENTS_NAME);
    std::fs::copy(root.join(CHAPTERS), source.join(&contents))?;
    chapters.push(Chapter { mark: "", title: "Contents".into(), path: Some(contents) });
    for target in links::targets(root, &listed)? {
        let (from, extension) = (root.join(&target), target.extension().unwrap_or_default());
        if from.is_dir() {
            place_folder(root, &source, &target)?;
        } else if extension != "md" {
            place(root, &source, &target)?;
        } else if !listed.contains(&target) && target != Path::new(CHAPTERS) {
            bail!("{} is linked and no chapter: add it to {CHAPTERS}", target.display());
        }
    }
    std::fs::write(source.join(CHAPTERS_NAME), list(&chapters))?;
    std::fs::write(directory.join("book.toml"), CONFIGURATION)?;
    Ok(())
}

/// Copies a file to its place in the copy.
fn place(root: &Path, source: &Path, path: &Path) -> Result<()> {
    let to = source.join(path);
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(root.join(path), &to).with_context(|| format!("cannot copy {}", path.display()))?;
    Ok(())
}

/// Copies the files of a folder, and makes the page that a link to the folder shows.
fn place_folder(root: &Path, source: &Path, folder: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && !name.ends_with(".md") {
            place(root, source, &folder.join(&name))?;
            names.push(name);
        }
    }
    names.sort();
    std::fs::create_dir_all(source.join(folder))?;
    let mut page = format!("<!DOCTYPE html><meta charset=\"utf-8\"><title>{0}</title><h1>{0}</h1>\n", folder.display());
    for name in names {
        let name = crate::chart::escape(&name);
        let _ = writeln!(page, "<p><a href=\"{name}\">{name}</a></p>");
    }
    std::fs::write(source.join(folder).join("index.html"), page)?;
    Ok(())
}

/// A line of the list of chapters.
#[derive(Debug, PartialEq, Eq)]
struct Chapter {
    /// The list's own mark before the link: of a numbered chapter, of one without a number, of a part.
    mark: &'static str,
    title: String,
    /// The document, from the tree's root; a part has none.
    path: Option<PathBuf>,
}

/// Reads the tree's list of chapters: headings, and links in lists, which may go over several lines.
fn chapters(text: &str) -> Vec<Chapter> {
    let mut chapters = Vec::new();
    let joined = text.replace("\n  ", " ");
    for line in joined.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            chapters.push(Chapter { mark: "# ", title: title.trim().into(), path: None });
            continue;
        }
        let item = line.trim_start_matches(|character: char| character.is_ascii_digit());
        let (mark, item) = match item.strip_prefix(". ").or_else(|| item.strip_prefix("* ")) {
            Some(item) => ("- ", item),
            None => ("", item),
        };
        let link =
            item.strip_prefix('[').and_then(|item| item.strip_suffix(')')).and_then(|item| item.split_once("]("));
        if let Some((title, target)) = link
            && let Some(path) = links::resolve(Path::new(CHAPTERS), target)
        {
            chapters.push(Chapter { mark, title: title.into(), path: Some(path) });
        }
    }
    chapters
}

/// Writes the list as mdBook reads it.
fn list(chapters: &[Chapter]) -> String {
    let mut text = String::from("# Summary\n");
    for Chapter { mark, title, path } in chapters {
        let _ = match path {
            Some(path) if mark.is_empty() => writeln!(text, "\n[{title}]({})", path.display()),
            Some(path) => writeln!(text, "{mark}[{title}]({})", path.display()),
            None => writeln!(text, "\n{mark}{title}\n"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_chapters_becomes_mdbook_s() {
        let text = "# The book\n\n[Introduction](../README.md)\n\n## Chapters\n\n1. [One](book/one.md)\n\n## More\n\n\
                    Some words about it.\n\n* [A title of two\n  lines](decisions/001-a.md)\n";
        let found = chapters(text);
        let expected = "# Summary\n\n[Introduction](README.md)\n\n# Chapters\n\n- [One](docs/book/one.md)\n\n# More\n\n\
                        - [A title of two lines](docs/decisions/001-a.md)\n";
        assert_eq!(list(&found), expected);
    }

    #[test]
    fn every_document_that_is_linked_is_a_chapter_and_every_file_is_copied() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let directory = std::env::temp_dir().join(format!("xtask-book-{}", std::process::id()));
        let copied = copy(root, &directory).and_then(|()| copy(root, &directory));
        let has = |path: &str| directory.join("source").join(path).exists();
        let there = ["SUMMARY.md", "README.md", "docs/book/concepts.md", "ARCHITECTURE.md"].map(has);
        let folder = std::fs::read_to_string(directory.join("source/kernel/unix/src/calls/index.html"));
        std::fs::remove_dir_all(&directory).unwrap();
        copied.unwrap();
        assert_eq!(there, [true; 4]);
        assert!(folder.unwrap().contains("<a href=\"sockets.rs\">"));
    }
}
