//! Links in the Markdown documents that lead nowhere: to missing files, and to missing headings. And names that a
//! document places in a file which does not have them: `NAME` in [a.rs](a.rs).
//!
//! Renaming a file or a heading breaks links in other documents, and moving a constant makes a table of limits untrue;
//! no compiler reports either. Links to other hosts are not checked: they are outside of this tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// Folders that are not the tree's own.
const SKIPPED: [&str; 2] = ["target", "node_modules"];

/// A document: its links, with the line of each, and its anchors.
#[derive(Debug, Default)]
struct Document {
    links: Vec<(usize, String)>,
    /// Names that the text places in the file of a link, with their lines and the links.
    names: Vec<(usize, String, String)>,
    anchors: BTreeSet<String>,
}

/// Returns the problems of the links in all Markdown files below `root`.
///
/// # Errors
///
/// The tree cannot be read.
pub fn broken_links(root: &Path) -> Result<Vec<String>> {
    let mut documents = BTreeMap::new();
    collect(root, root, &mut documents)?;
    let mut found = problems(&documents, &|path| root.join(path).exists());
    found.extend(misplaced_names(&documents, &|path| std::fs::read_to_string(root.join(path)).ok()));
    Ok(found)
}

/// Returns the files and folders of the tree to which these documents have links.
///
/// # Errors
///
/// A document cannot be read.
pub fn targets(root: &Path, documents: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let mut targets = BTreeSet::new();
    for path in documents {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        for (_, link) in read(&text).links {
            let file = link.split('#').next().unwrap_or_default();
            let is_elsewhere = file.is_empty() || file.contains(':');
            targets.extend(resolve(path, file).filter(|target| !is_elsewhere && root.join(target).exists()));
        }
    }
    Ok(targets)
}

fn collect(root: &Path, folder: &Path, documents: &mut BTreeMap<PathBuf, Document>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_ref()) {
                collect(root, &path, documents)?;
            }
        } else if name.ends_with(".md") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            documents.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf(), read(&text));
        }
    }
    Ok(())
}

fn read(text: &str) -> Document {
    let mut document = Document::default();
    let mut heading: Option<String> = None;
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut placing = Placing::default();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        for (name, link) in placing.next(&event) {
            document.names.push((text[..range.start].matches('\n').count() + 1, name, link));
        }
        match event {
            Event::Start(Tag::Link { link_type: LinkType::Email, .. }) => {}
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = text[..range.start].matches('\n').count() + 1;
                document.links.push((line, dest_url.into_string()));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let count = seen.entry(anchor.clone()).or_default();
                document.anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                for attribute in ["id=\"", "name=\""] {
                    for rest in html.split(attribute).skip(1) {
                        document.anchors.extend(rest.split('"').next().map(str::to_string));
                    }
                }
            }
            _ => {}
        }
    }
    document
}

/// The names in code that were just read, if the text after them goes on to place them in a file.
#[derive(Debug, Default)]
struct Placing {
    names: Vec<String>,
    /// Set behind the word "in".
    is_complete: bool,
}

impl Placing {
    /// Takes the next part of a document; returns the names that it places, with the link.
    fn next(&mut self, event: &Event<'_>) -> Vec<(String, String)> {
        match event {
            Event::Code(name) if !self.is_complete => self.names.push(name.to_string()),
            Event::Text(words) if matches!(words.as_ref(), ", " | " and " | " times ") => self.is_complete = false,
            Event::Text(words) if words.trim() == "in" => self.is_complete = true,
            Event::SoftBreak => {}
            Event::Start(Tag::Link { dest_url, .. }) if self.is_complete => {
                self.is_complete = false;
                return self.names.drain(..).map(|name| (name, dest_url.to_string())).collect();
            }
            _ => *self = Placing::default(),
        }
        Vec::new()
    }
}

/// Returns the names that are placed in a Rust file without them. A constant must be defined there; any other name must
/// occur.
fn misplaced_names(documents: &BTreeMap<PathBuf, Document>, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, document) in documents {
        for (line, name, link) in &document.names {
            let file = link.split('#').next().unwrap_or_default();
            let Some(target) = resolve(path, file).filter(|target| target.extension().is_some_and(|end| end == "rs"))
            else {
                continue;
            };
            if read(&target).is_some_and(|text| !has(&text, name)) {
                problems.push(format!("{}:{line}: `{name}` is not in {}", path.display(), target.display()));
            }
        }
    }
    problems
}

fn has(text: &str, name: &str) -> bool {
    let last = name.trim_end_matches("()").rsplit("::").next().unwrap_or_default();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    if last.is_empty() || !last.chars().all(is_part) {
        return true;
    }
    if last.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_') {
        return ["const", "static"].iter().any(|word| text.contains(&format!("{word} {last}:")));
    }
    text.split(|letter| !is_part(letter)).any(|word| word == last)
}

/// Returns the anchor of a heading in the rendered documents: small letters, hyphens for spaces, and no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

fn problems(documents: &BTreeMap<PathBuf, Document>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, document) in documents {
        for (line, link) in &document.links {
            if let Some(reason) = objection(path, link, documents, exists) {
                problems.push(format!("{}:{line}: the link `{link}` leads nowhere: {reason}", path.display()));
            }
        }
    }
    problems
}

fn objection(
    from: &Path,
    link: &str,
    documents: &BTreeMap<PathBuf, Document>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<String> {
    // A scheme, as in `https:`: outside of this tree.
    if link.split(['/', '#', '?']).next().is_some_and(|first| first.contains(':')) {
        return None;
    }
    let (file, fragment) = link.split_once('#').map_or((link, None), |(file, fragment)| (file, Some(fragment)));
    let target = if file.is_empty() {
        from.to_path_buf()
    } else {
        let Some(target) = resolve(from, file) else { return Some("it leaves the tree".into()) };
        target
    };
    if !exists(&target) {
        return Some(format!("there is no {}", target.display()));
    }
    match (fragment, documents.get(&target)) {
        (Some(fragment), Some(document)) if !document.anchors.contains(fragment) => {
            Some(format!("{} has no heading for it", target.display()))
        }
        _ => None,
    }
}

/// Resolves a relative link; `None` beyond the root.
pub fn resolve(from: &Path, link: &str) -> Option<PathBuf> {
    let mut target = from.parent()?.to_path_buf();
    for component in Path::new(link).components() {
        match component {
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !target.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
        let documents = documents.map(|(path, text)| (PathBuf::from(path), read(text))).collect();
        problems(&documents, &|path| {
            files.iter().any(|(file, _)| Path::new(file) == path || Path::new(file).starts_with(path))
        })
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let readme = "# Title\n\n[a](docs/a.md) [b](docs/a.md#the-second-one) [self](#title) [folder](docs/)\n\n\
                      [out](https://example.org/x#y) <mail@example.org> [source](src/x.rs#L3) [r]\n\n[r]: docs/a.md#x_y-1\n";
        let other = "## The *second* one!\n\n## `x_y`\n## X_y\n[up](../README.md#title)\n";
        assert_eq!(check(&[("README.md", readme), ("docs/a.md", other), ("src/x.rs", "")]), [""; 0]);
    }

    #[test]
    fn missing_files_and_headings_are_named_with_their_line() {
        let readme = "# Title\n\n[a](docs/b.md)\n[b](docs/a.md#third)\n![picture](no.svg)\n[c](#titel)\n[d](../x.md)\n";
        let found = check(&[("README.md", readme), ("docs/a.md", "# Second\n")]);
        assert_eq!(
            found,
            [
                "README.md:3: the link `docs/b.md` leads nowhere: there is no docs/b.md",
                "README.md:4: the link `docs/a.md#third` leads nowhere: docs/a.md has no heading for it",
                "README.md:5: the link `no.svg` leads nowhere: there is no no.svg",
                "README.md:6: the link `#titel` leads nowhere: README.md has no heading for it",
                "README.md:7: the link `../x.md` leads nowhere: it leaves the tree",
            ]
        );
    }

    #[test]
    fn names_must_be_in_the_file_in_which_the_text_places_them() {
        let source = "use b::LIMIT;\npub(crate) const MOST: usize = 3;\nstatic ALL: u8 = 1;\nfn act() {}\n";
        let text = "| `MOST`, `ALL` in [a.rs](a.rs) | `LIMIT` in\n[a](a.rs#L1), `A::act()` in [a](a.rs); `away` in [a](a.rs)\n\n\
                    `gone` and `MOST` in [a](a.rs). `gone` stands, in [a](a.rs), `x` in `y` in [a](a.rs), `z` in [b](b.md)\n\n\
                    `NO` in `b`, [a](a.rs), `a b` in [a](a.rs), `u` in [none](none.rs)\n";
        let documents = BTreeMap::from([(PathBuf::from("t.md"), read(text))]);
        let found = misplaced_names(&documents, &|path| (path == Path::new("a.rs")).then(|| source.to_string()));
        assert_eq!(
            found,
            ["t.md:2: `LIMIT` is not in a.rs", "t.md:2: `away` is not in a.rs", "t.md:4: `gone` is not in a.rs"]
        );
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(check(&[("a.md", "`[x](y)`\n\n```text\n[x](y)\n```\n")]), [""; 0]);
    }
}
