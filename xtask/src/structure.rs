//! Figures about the shape of the source tree: `tidy --report`.
//!
//! Rules say yes or no ([`crate::tidy`]); the figures here measure the distance to the goals. They are counted on
//! syntax trees and on lines, tests left out, and printed with their goals and with the places to begin at:
//!
//! * **Import cycle**: the largest set of files of one crate that all import each other, perhaps through others.
//! * **Long functions**: the share of functions that a reader cannot see at once.
//! * **Public items**: `pub` in a crate without importers hides dead code from the compiler.
//! * **Type names of several meanings**: a name that two files of one crate give to different types.
//! * **Pronouns**: "what", "who", "whoever", "nobody" and "somebody" in comments, where English technical prose has a
//!   noun.
//! * **Wide comments**: rustfmt wraps code, but no comments.
//! * **Duplicates**: pairs of places that share six lines or more.
//! * **Files without a test on the host**, in the Unix kernel.
//!
//! [`measure`] is a pure function of the sources, so that each figure has its test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::figures::{figure, table};
use crate::prose::GENERATED;
use crate::workspace::Workspace;

/// Largest number of columns of a line.
pub const WIDTH: usize = 120;

/// Lines above which a function is long, and very long.
const LONG: usize = 60;
const VERY_LONG: usize = 120;

/// Number of shared lines that make two places a pair.
const SHARED_LINES: usize = 6;

/// A run of lines in more places than this is a common shape and no copy.
const COMMON: usize = 8;

/// Words in the place of a noun.
const PRONOUNS: [&str; 5] = ["what", "who", "whoever", "nobody", "somebody"];

/// The crates whose import cycles are reported, by folder, with the goal of each.
const CYCLES: [(&str, usize); 4] =
    [("kernel/unix/src/", 12), ("kernel/micro/src/", 3), ("hal/riscv64/src/", 0), ("hal/api/src/", 0)];

/// The crate without importers, and whose files should have tests on the host.
const KERNEL: &str = "kernel/unix/src/";

/// A source file: its path from the root of the tree, and its text.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    /// Returns whether the file is a test, or a program that is a suite.
    fn is_test(&self) -> bool {
        let in_suite = ["apps/tests/", "apps/fuzz/", "apps/root-task/src/suite", "tests/"];
        let is_named_so = |name: &str| name == "tests.rs" || name.ends_with("_tests.rs");
        in_suite.iter().any(|folder| self.path.starts_with(folder))
            || self.path.contains("/tests/")
            || self.path.rsplit('/').next().is_some_and(is_named_so)
    }
}

/// A figure with its goal, and the places to begin at.
#[derive(Clone, Debug)]
struct Measure {
    name: String,
    value: f64,
    goal: f64,
    places: Vec<String>,
}

/// Measures the tree and prints the figures.
///
/// # Errors
///
/// A file cannot be read or parsed.
pub fn report(workspace: &Workspace) -> Result<()> {
    let (sources, documents) = texts(&workspace.root)?;
    let measures = measure(&sources, &documents)?;
    let rows = measures.iter().map(|measure| {
        let verdict = if measure.value <= measure.goal { "met" } else { "missed" };
        vec![measure.name.clone(), figure(measure.value), figure(measure.goal), verdict.into()]
    });
    print!("{}", table(&["figure", "value", "goal", ""], &rows.collect::<Vec<_>>()));
    for measure in measures.iter().filter(|measure| measure.value > measure.goal && !measure.places.is_empty()) {
        println!("\n{}:", measure.name);
        measure.places.iter().for_each(|place| println!("  {place}"));
    }
    Ok(())
}

/// Reads all Rust files, and all documents, of the tree.
///
/// # Errors
///
/// A file cannot be read.
pub fn texts(root: &Path) -> Result<(Vec<Source>, Vec<Source>)> {
    let (mut sources, mut documents) = (Vec::new(), Vec::new());
    read(root, root, &mut sources, &mut documents)?;
    Ok((sources, documents))
}

/// Collects the Rust files and the documents below a folder, without build products and hidden files.
fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>, documents: &mut Vec<Source>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            read(root, &path, sources, documents)?;
            continue;
        }
        let list = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => &mut *sources,
            Some("md") => &mut *documents,
            _ => continue,
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        list.push(Source { path: path.strip_prefix(root).unwrap_or(&path).display().to_string(), text });
    }
    Ok(())
}

fn measure(sources: &[Source], documents: &[Source]) -> Result<Vec<Measure>> {
    let product: Vec<&Source> = sources.iter().filter(|source| !source.is_test()).collect();
    let mut files = Vec::new();
    for source in &product {
        let file = syn::parse_file(&source.text).with_context(|| format!("cannot parse {}", source.path))?;
        files.push((*source, Shape::of(&file)));
    }
    let mut measures: Vec<Measure> = CYCLES.iter().map(|(folder, goal)| cycle(folder, *goal, &files)).collect();
    measures.extend(functions(&files));
    measures.push(public(&files));
    measures.push(type_names(&files));
    measures.push(pronouns(sources));
    measures.extend(wide(sources, documents));
    measures.push(duplicates(&product));
    measures.push(untested(&files));
    Ok(measures)
}

// ---- syntax ----

/// A function: its name, its first line, and its number of lines.
#[derive(Clone, Debug)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
    /// Whether it only looks something up: it ends with a `match` of short arms, with few lines before it.
    is_table: bool,
}

/// Longest arm of a `match` that is a table, in lines.
const TABLE_ARM: usize = 3;

/// The parts of a file's syntax that are measured, tests left out.
#[derive(Debug, Default)]
struct Shape {
    /// Paths within the crate, by their segments; the first is `crate`, `self` or `super`.
    imports: BTreeSet<Vec<String>>,
    functions: Vec<Function>,
    public: usize,
    /// Names of the types and traits that the file defines.
    types: BTreeSet<String>,
    has_tests: bool,
}

impl Shape {
    fn of(file: &syn::File) -> Shape {
        let mut shape = Shape::default();
        shape.visit_file(file);
        shape
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        let name = signature.ident.to_string();
        self.functions.push(Function { name, line: first, lines: last + 1 - first, is_table: is_table(block) });
    }

    fn import(&mut self, segments: Vec<String>) {
        if segments.len() > 1 && ["crate", "self", "super"].contains(&segments[0].as_str()) {
            self.imports.insert(segments);
        }
    }

    fn import_tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [prefix, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.import(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.import(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.import(prefix.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.import_tree(prefix, item)),
        }
    }

    /// Finds paths in the arguments of a macro, which are tokens only.
    fn import_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.import_tokens(group.stream()),
                TokenTree::Ident(ident) if *ident == "crate" || *ident == "super" => {
                    let mut segments = vec![ident.to_string()];
                    while let [TokenTree::Punct(one), TokenTree::Punct(two), TokenTree::Ident(next), ..] =
                        &tokens[at + 1..]
                        && (one.as_char(), two.as_char()) == (':', ':')
                    {
                        segments.push(next.to_string());
                        at += 3;
                    }
                    self.import(segments);
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Returns whether attributes limit an item to tests.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        attribute.path().is_ident("test")
            || is_cfg
                && attribute.meta.require_list().is_ok_and(|list| {
                    let words = list.tokens.to_string();
                    words == "test" || words.starts_with("all (test") || words.starts_with("all(test")
                })
    })
}

impl<'ast> Visit<'ast> for Shape {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) {
            self.has_tests = true;
        } else {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_for_tests(&item.attrs) {
            self.has_tests = true;
        } else {
            self.function(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.import_tree(&[], &item.tree);
            self.visit_visibility(&item.vis);
        }
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let defined = match item {
            syn::Item::Struct(item) => Some((&item.attrs, &item.ident)),
            syn::Item::Enum(item) => Some((&item.attrs, &item.ident)),
            syn::Item::Union(item) => Some((&item.attrs, &item.ident)),
            syn::Item::Trait(item) => Some((&item.attrs, &item.ident)),
            syn::Item::Type(item) => Some((&item.attrs, &item.ident)),
            _ => None,
        };
        if let Some((_, name)) = defined.filter(|(attributes, _)| !is_for_tests(attributes)) {
            self.types.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_visibility(&mut self, visibility: &'ast syn::Visibility) {
        self.public += usize::from(matches!(visibility, syn::Visibility::Public(_)));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.import(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.import_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

// ---- figures of syntax ----

/// Returns the module of a file, by the segments of its path within the crate; `None` for a program beside the library.
fn module(file: &str) -> Option<Vec<String>> {
    let path = file.strip_suffix(".rs")?;
    let mut segments: Vec<String> = path.split('/').map(ToString::to_string).collect();
    match segments.last()?.as_str() {
        "main" | "build" => return None,
        "lib" | "mod" => {
            segments.pop();
        }
        _ => {}
    }
    Some(segments)
}

/// Finds the largest set of files of one crate that all import each other.
fn cycle(folder: &str, goal: usize, files: &[(&Source, Shape)]) -> Measure {
    let mut modules = BTreeMap::new();
    let mut members = Vec::new();
    for (source, shape) in files {
        if let Some(module) = source.path.strip_prefix(folder).and_then(module) {
            modules.insert(module.clone(), members.len());
            members.push((module, shape));
        }
    }
    let reached = |module: &[String], import: &[String]| {
        let mut path = match import[0].as_str() {
            "crate" => Vec::new(),
            _ => module.to_vec(),
        };
        for segment in import {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    path.pop();
                }
                name => path.push(name.to_string()),
            }
        }
        // The rest of the path names items of the module.
        while !modules.contains_key(&path) && path.pop().is_some() {}
        modules.get(&path).copied()
    };
    let count = members.len();
    let mut reaches = vec![vec![false; count]; count];
    for (from, (module, shape)) in members.iter().enumerate() {
        for to in shape.imports.iter().filter_map(|import| reached(module, import)) {
            reaches[from][to] |= from != to;
        }
    }
    for through in 0..count {
        for from in 0..count {
            for to in 0..count {
                reaches[from][to] |= reaches[from][through] && reaches[through][to];
            }
        }
    }
    let together = |one: usize| -> Vec<usize> {
        // A file in a cycle reaches itself.
        (0..count).filter(|other| reaches[one][*other] && reaches[*other][one]).collect()
    };
    let largest = (0..count).map(together).max_by_key(Vec::len).unwrap_or_default();
    let name = |member: &usize| match members[*member].0.join("::") {
        name if name.is_empty() => "(the root)".into(),
        name => name,
    };
    let places =
        if largest.is_empty() { Vec::new() } else { vec![largest.iter().map(name).collect::<Vec<_>>().join(", ")] };
    let crate_name = folder.trim_end_matches("/src/");
    Measure {
        name: format!("files in the largest import cycle of {crate_name}, of {count}"),
        value: largest.len() as f64,
        goal: goal as f64,
        places,
    }
}

fn is_table(block: &syn::Block) -> bool {
    let Some(syn::Stmt::Expr(syn::Expr::Match(table), None)) = block.stmts.last() else { return false };
    let lines = |span: proc_macro2::Span| span.end().line + 1 - span.start().line;
    block.stmts.len() <= TABLE_ARM
        && table.arms.iter().all(|arm| !matches!(*arm.body, syn::Expr::Block(_)) && lines(arm.body.span()) <= TABLE_ARM)
}

fn functions(files: &[(&Source, Shape)]) -> [Measure; 2] {
    let all: Vec<(&Source, &Function)> = files
        .iter()
        .flat_map(|(source, shape)| shape.functions.iter().map(move |function| (*source, function)))
        .collect();
    let longer_than = |lines: usize, with_tables: bool| {
        let is_meant = |function: &Function| function.lines > lines && (with_tables || !function.is_table);
        let mut found: Vec<_> = all.iter().filter(|(_, function)| is_meant(function)).collect();
        found.sort_by_key(|(_, function)| std::cmp::Reverse(function.lines));
        found
            .iter()
            .map(|(source, function)| {
                format!("{}:{} {}: {} lines", source.path, function.line, function.name, function.lines)
            })
            .collect::<Vec<_>>()
    };
    let (long, very_long) = (longer_than(LONG, true), longer_than(VERY_LONG, false));
    [
        Measure {
            name: format!("functions over {LONG} lines, in hundredths of {}", all.len()),
            value: 100.0 * long.len() as f64 / all.len().max(1) as f64,
            goal: 0.5,
            places: long,
        },
        Measure {
            name: format!("functions over {VERY_LONG} lines, but tables"),
            value: very_long.len() as f64,
            goal: 0.0,
            places: very_long,
        },
    ]
}

fn public(files: &[(&Source, Shape)]) -> Measure {
    let mut counts: Vec<(usize, &str)> = files
        .iter()
        .filter(|(source, _)| source.path.starts_with(KERNEL))
        .map(|(source, shape)| (shape.public, source.path.as_str()))
        .collect();
    counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    Measure {
        name: format!("`pub` in {}", KERNEL.trim_end_matches("/src/")),
        value: counts.iter().map(|(count, _)| *count as f64).sum(),
        goal: 120.0,
        places: counts.iter().take(10).map(|(count, path)| format!("{path}: {count}")).collect(),
    }
}

fn type_names(files: &[(&Source, Shape)]) -> Measure {
    let mut owners: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (source, shape) in files {
        if let Some((folder, file)) = source.path.split_once("/src/") {
            for name in &shape.types {
                owners.entry((folder, name)).or_default().push(file);
            }
        }
    }
    owners.retain(|_, files| files.len() > 1);
    Measure {
        name: "type names of several meanings in one crate".into(),
        value: owners.len() as f64,
        goal: 20.0,
        places: owners
            .iter()
            .map(|((folder, name), files)| format!("{folder}: {name}: {}", files.join(", ")))
            .collect(),
    }
}

fn untested(files: &[(&Source, Shape)]) -> Measure {
    let places: Vec<String> = files
        .iter()
        .filter(|(source, shape)| source.path.starts_with(KERNEL) && !shape.has_tests)
        .map(|(source, _)| source.path.clone())
        .collect();
    Measure {
        name: format!("files of {} without a test on the host", KERNEL.trim_end_matches("/src/")),
        value: places.len() as f64,
        goal: 6.0,
        places,
    }
}

// ---- figures of lines ----

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn pronouns(sources: &[Source]) -> Measure {
    let (mut words, mut found) = (0usize, 0usize);
    let mut places = Vec::new();
    for source in sources {
        let in_comments = source.text.lines().filter(|line| is_comment(line));
        let all = in_comments
            .flat_map(|line| line.split(|c: char| !c.is_alphabetic() && c != '\''))
            .filter(|word| !word.is_empty());
        let (mut own_words, mut own) = (0usize, 0usize);
        for word in all {
            own_words += 1;
            own += usize::from(PRONOUNS.contains(&word.to_lowercase().as_str()));
        }
        words += own_words;
        found += own;
        places.push((own, source.path.as_str()));
    }
    places.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    Measure {
        name: format!("pronouns in 1,000 words of comments, of {words}"),
        value: 1000.0 * found as f64 / words.max(1) as f64,
        goal: 1.5,
        places: places.iter().take(10).map(|(count, path)| format!("{path}: {count}")).collect(),
    }
}

fn wide(sources: &[Source], documents: &[Source]) -> [Measure; 2] {
    let count = |files: &[Source], is_meant: &dyn Fn(&str) -> bool| {
        let mut counts: Vec<(usize, &str)> = files
            .iter()
            .filter(|file| !GENERATED.contains(&file.path.as_str()))
            .map(|file| {
                let is_wide = |line: &&str| is_meant(line) && line.chars().count() > WIDTH;
                (file.text.lines().filter(is_wide).count(), file.path.as_str())
            })
            .collect();
        counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let sum = counts.iter().map(|(count, _)| *count as f64).sum();
        let places = counts.iter().take(10).map(|(count, path)| format!("{path}: {count}")).collect();
        (sum, places)
    };
    let (comments, in_sources) = count(sources, &is_comment);
    // Rows of tables cannot be wrapped.
    let (lines, in_documents) = count(documents, &|line| !line.trim_start().starts_with('|'));
    [
        Measure {
            name: format!("lines of comments over {WIDTH} columns"),
            value: comments,
            goal: 0.0,
            places: in_sources,
        },
        Measure {
            name: format!("lines of documents over {WIDTH} columns"),
            value: lines,
            goal: 0.0,
            places: in_documents,
        },
    ]
}

/// Counts pairs of places that share [`SHARED_LINES`] lines of code or more; a longer run is one pair.
fn duplicates(sources: &[&Source]) -> Measure {
    // Lines of code with their numbers, file by file.
    let code: Vec<Vec<(usize, &str)>> = sources
        .iter()
        .map(|source| {
            let lines = source.text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
            let is_code = |line: &str| line.len() > 1 && !is_comment(line) && !line.starts_with("use ");
            lines.filter(|(_, line)| is_code(line)).collect()
        })
        .collect();
    let mut windows: BTreeMap<Vec<&str>, Vec<(usize, usize)>> = BTreeMap::new();
    for (file, lines) in code.iter().enumerate() {
        for at in 0..(lines.len() + 1).saturating_sub(SHARED_LINES) {
            let window = lines[at..at + SHARED_LINES].iter().map(|(_, line)| *line).collect();
            windows.entry(window).or_default().push((file, at));
        }
    }
    let mut pairs = BTreeSet::new();
    for places in windows.values().filter(|places| places.len() <= COMMON) {
        for (index, one) in places.iter().enumerate() {
            for other in &places[index + 1..] {
                // A file that repeats itself within the run is one place.
                if one.0 != other.0 || other.1 - one.1 >= SHARED_LINES {
                    pairs.insert((*one, *other));
                }
            }
        }
    }
    let continues = |(one, other): &((usize, usize), (usize, usize))| {
        let before = |(file, at): (usize, usize)| at.checked_sub(1).map(|at| (file, at));
        match (before(*one), before(*other)) {
            (Some(one), Some(other)) => pairs.contains(&(one, other)),
            _ => false,
        }
    };
    let starts: Vec<String> = pairs
        .iter()
        .filter(|pair| !continues(pair))
        .map(|((file, at), (other, there))| {
            let place = |file: usize, at: usize| format!("{}:{}", sources[file].path, code[file][at].0);
            format!("{} and {}", place(*file, *at), place(*other, *there))
        })
        .collect();
    Measure {
        name: format!("pairs of places that share {SHARED_LINES} lines"),
        value: starts.len() as f64,
        goal: 18.0,
        places: starts.into_iter().take(40).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    fn shapes(sources: &[Source]) -> Vec<(&Source, Shape)> {
        sources.iter().map(|source| (source, Shape::of(&syn::parse_file(&source.text).unwrap()))).collect()
    }

    #[test]
    fn a_cycle_is_found_through_others_and_through_folders() {
        let sources = [
            source("x/src/lib.rs", "mod a; mod b; mod c; mod d; pub fn top() {}"),
            source("x/src/a.rs", "use crate::b::Thing;"),
            source("x/src/b/mod.rs", "fn f() { crate::c::g(); }"),
            source("x/src/b/inner.rs", "use super::super::c;"),
            source("x/src/c.rs", "fn g() { println!(\"{}\", crate::a::X); }"),
            source("x/src/d.rs", "use crate::a; #[cfg(test)] mod tests { use crate::d; }"),
            source("x/src/main.rs", "use crate::a;"),
        ];
        let found = cycle("x/src/", 0, &shapes(&sources));
        assert_eq!(found.value, 3.0);
        assert_eq!(found.places, ["a, b, c"]);
        assert!(found.name.ends_with("of 6"), "{}", found.name);
    }

    #[test]
    fn imports_that_point_one_way_are_no_cycle() {
        let sources = [source("x/src/a.rs", "use crate::b;"), source("x/src/b.rs", "use self::c; fn f() {}")];
        assert_eq!(cycle("x/src/", 0, &shapes(&sources)).value, 0.0);
    }

    #[test]
    fn long_functions_count_and_tests_do_not() {
        let long = format!("fn f() {{\n{}}}\n", "let _ = 1;\n".repeat(LONG));
        let sources = [source("x/src/a.rs", &format!("{long}#[cfg(test)] mod t {{ {long} }} fn g() {{}}"))];
        let [share, very] = functions(&shapes(&sources));
        assert_eq!((share.value, very.value), (50.0, 0.0));
        assert_eq!(share.places, [format!("x/src/a.rs:1 f: {} lines", LONG + 2)]);
    }

    #[test]
    fn a_table_may_be_very_long_and_logic_may_not() {
        let very_long = |arm: &str, rest: &str| {
            let arms: String = (0..VERY_LONG).map(|number| format!("{number} => {arm},\n")).collect();
            let text = format!("fn f(x: u8) -> u8 {{ use a::b; match x {{ {arms} _ => 0 }} {rest} }}");
            functions(&shapes(&[source("x/src/a.rs", &text)]))[1].value
        };
        assert_eq!(very_long("g(x)", ""), 0.0);
        assert_eq!(very_long("{ g(x) }", ""), 1.0);
        assert_eq!(very_long("g(\n\n\nx)", ""), 1.0);
        assert_eq!(very_long("g(x)", "; 2"), 1.0);
    }

    #[test]
    fn only_plain_public_items_count() {
        let text = "pub struct S { pub a: u8, pub(crate) b: u8, c: u8 } pub use crate::x; pub fn f() {}";
        assert_eq!(public(&shapes(&[source("kernel/unix/src/a.rs", text)])).value, 4.0);
    }

    #[test]
    fn types_with_one_name_count_within_a_crate_and_outside_of_tests() {
        let sources = [
            source(
                "a/src/b.rs",
                "struct Place;\nenum Way {}\ntype Key = u8;\n#[cfg(test)]\nmod tests { struct Bell; }\n",
            ),
            source("a/src/c.rs", "fn f() { struct Place; }\ntrait Way {}\n#[cfg(test)]\nstruct Key;\nstruct Bell;\n"),
            source(
                "d/src/b.rs",
                "struct Place;\n#[cfg(a)]\nunion One { b: u8 }\n#[cfg(not(a))]\nunion One { b: u8 }\n",
            ),
        ];
        let found = type_names(&shapes(&sources));
        assert_eq!(found.value, 2.0);
        assert_eq!(found.places, ["a: Place: b.rs, c.rs", "a: Way: b.rs, c.rs"]);
    }

    #[test]
    fn words_of_comments_count_and_those_of_code_do_not() {
        let found = pronouns(&[source("a.rs", "//! What is it,\n/// whatever: nobody\nfn who() {}\n")]);
        assert_eq!(found.value, 1000.0 * 2.0 / 5.0);
    }

    #[test]
    fn rows_of_tables_may_be_wide() {
        let wide_line = "x".repeat(WIDTH + 1);
        let documents = [source("a.md", &format!("{wide_line}\n| {wide_line}\n"))];
        let sources = [source("a.rs", &format!("// {wide_line}\nlet a = \"{wide_line}\";\n"))];
        let [comments, lines] = wide(&sources, &documents);
        assert_eq!((comments.value, lines.value), (1.0, 1.0));
    }

    #[test]
    fn a_long_copy_is_one_pair() {
        let lines: String = (0..9).map(|number| format!("call_number({number});\n")).collect();
        let sources =
            [source("a.rs", &lines), source("b.rs", &format!("before();\n{lines}")), source("c.rs", "other();\n")];
        let found = duplicates(&sources.iter().collect::<Vec<_>>());
        assert_eq!(found.value, 1.0);
        assert_eq!(found.places, ["a.rs:1 and b.rs:2"]);
    }

    #[test]
    fn suites_are_tests() {
        for path in ["apps/tests/src/main.rs", "lib/x/tests/model.rs", "lib/x/src/loom_tests.rs", "tests/hal/src/a.rs"]
        {
            assert!(source(path, "").is_test(), "{path}");
        }
        assert!(!source("kernel/unix/src/testing.rs", "").is_test());
    }
}
