//! Device trees from their source: the part of the source format that boards/*.dts use.
//!
//! A board that QEMU makes no tree for has one in boards, in the usual source format (Devicetree Specification 0.4,
//! appendix A): nodes with labels, and properties of text, cells, bytes and references to labels. Anything else is an
//! error with its line. The compiler of the format, dtc, is not needed for a dozen nodes, and not on every host.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

/// Compiles a source into a flattened device tree.
///
/// # Errors
///
/// The source is wrong; the message has the line.
pub fn compile(source: &str) -> Result<Vec<u8>> {
    let mut parser = Parser { tokens: tokens(source)?.into_iter().peekable(), line: 1, labels: BTreeSet::new() };
    parser.expect("/dts-v1/")?;
    parser.expect(";")?;
    parser.expect("/")?;
    let root = parser.node("")?;
    if let Some((line, token)) = parser.tokens.next() {
        bail!("line {line}: `{token}` is behind the tree");
    }
    let mut references = Vec::new();
    collect_references(&root, &mut references);
    let mut phandles = BTreeMap::new();
    for label in references {
        if !parser.labels.contains(label) {
            bail!("no node has the label `{label}`");
        }
        let next = phandles.len() as u32 + 1;
        phandles.entry(label.to_string()).or_insert(next);
    }
    Ok(flatten(&root, &phandles))
}

/// A node and all below it.
#[derive(Debug)]
struct Node {
    name: String,
    label: Option<String>,
    properties: Vec<(String, Vec<Value>)>,
    children: Vec<Node>,
}

/// A part of a property's value.
#[derive(Debug, PartialEq)]
enum Value {
    Text(String),
    Cell(u32),
    Reference(String),
    Byte(u8),
}

/// Cuts a source into words, texts with their quotes, and signs, each with its line.
fn tokens(source: &str) -> Result<Vec<(usize, String)>> {
    let mut tokens = Vec::new();
    let mut is_comment = false;
    for (index, mut rest) in source.lines().enumerate() {
        let line = index + 1;
        loop {
            if is_comment {
                let Some(end) = rest.find("*/") else { break };
                is_comment = false;
                rest = &rest[end + 2..];
            }
            rest = rest.trim_start();
            if rest.is_empty() || rest.starts_with("//") {
                break;
            }
            if let Some(behind) = rest.strip_prefix("/*") {
                is_comment = true;
                rest = behind;
                continue;
            }
            let length = if let Some(text) = rest.strip_prefix('"') {
                match text.find('"') {
                    Some(end) => end + 2,
                    None => bail!("line {line}: a text without an end"),
                }
            } else if rest.starts_with("/dts-v1/") {
                "/dts-v1/".len()
            } else if rest.starts_with(|sign: char| "{};=<>[]:/&,".contains(sign)) {
                1
            } else {
                rest.find(|sign: char| sign.is_whitespace() || "{};=<>[]:/&\"".contains(sign)).unwrap_or(rest.len())
            };
            // A comma behind a text or a list is a sign; in the middle of a name it is a part of the name.
            let token = &rest[..length];
            tokens.push((line, token.to_string()));
            rest = &rest[length..];
        }
    }
    Ok(tokens)
}

struct Parser<I: Iterator<Item = (usize, String)>> {
    tokens: std::iter::Peekable<I>,
    line: usize,
    labels: BTreeSet<String>,
}

impl<I: Iterator<Item = (usize, String)>> Parser<I> {
    fn next(&mut self) -> Result<String> {
        match self.tokens.next() {
            Some((line, token)) => {
                self.line = line;
                Ok(token)
            }
            None => bail!("line {}: the source ends in the middle", self.line),
        }
    }

    fn is_next(&mut self, wanted: &str) -> bool {
        self.tokens.peek().is_some_and(|(_, token)| token == wanted)
    }

    fn expect(&mut self, wanted: &str) -> Result<()> {
        let token = self.next()?;
        if token != wanted {
            bail!("line {}: `{token}` where `{wanted}` belongs", self.line);
        }
        Ok(())
    }

    /// Reads a node from its opening brace on.
    fn node(&mut self, name: &str) -> Result<Node> {
        let mut node = Node { name: name.into(), label: None, properties: Vec::new(), children: Vec::new() };
        self.expect("{")?;
        while !self.is_next("}") {
            let mut name = self.next()?;
            let mut label = None;
            if self.is_next(":") {
                self.expect(":")?;
                if !self.labels.insert(name.clone()) {
                    bail!("line {}: a second label `{name}`", self.line);
                }
                label = Some(std::mem::replace(&mut name, self.next()?));
            }
            if self.is_next("{") {
                let child = self.node(&name)?;
                node.children.push(Node { label, ..child });
                continue;
            }
            let mut values = Vec::new();
            if self.is_next("=") {
                self.expect("=")?;
                self.values(&mut values)?;
                while self.is_next(",") {
                    self.expect(",")?;
                    self.values(&mut values)?;
                }
            }
            self.expect(";")?;
            node.properties.push((name, values));
        }
        self.expect("}")?;
        self.expect(";")?;
        Ok(node)
    }

    /// Reads a text, or a list of cells or bytes.
    fn values(&mut self, values: &mut Vec<Value>) -> Result<()> {
        let first = self.next()?;
        match first.as_str() {
            "<" => {
                while !self.is_next(">") {
                    let token = self.next()?;
                    values.push(match token.as_str() {
                        "&" => Value::Reference(self.next()?),
                        number => match parse_number(number) {
                            Some(number) => Value::Cell(number),
                            None => bail!("line {}: `{number}` is no number of 32 bits", self.line),
                        },
                    });
                }
                self.expect(">")
            }
            "[" => {
                while !self.is_next("]") {
                    let token = self.next()?;
                    match u8::from_str_radix(&token, 16) {
                        Ok(byte) if token.len() == 2 => values.push(Value::Byte(byte)),
                        _ => bail!("line {}: `{token}` is no byte of two digits", self.line),
                    }
                }
                self.expect("]")
            }
            text if text.starts_with('"') => {
                values.push(Value::Text(text.trim_matches('"').into()));
                Ok(())
            }
            other => bail!("line {}: `{other}` is no value", self.line),
        }
    }
}

fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn collect_references<'a>(node: &'a Node, references: &mut Vec<&'a str>) {
    let values = node.properties.iter().flat_map(|(_, values)| values);
    references.extend(values.filter_map(|value| match value {
        Value::Reference(label) => Some(label.as_str()),
        _ => None,
    }));
    node.children.iter().for_each(|child| collect_references(child, references));
}

/// Writes the flattened form (Devicetree Specification, chapter 5).
fn flatten(root: &Node, phandles: &BTreeMap<String, u32>) -> Vec<u8> {
    const HEADER: usize = 40;
    const RESERVATIONS: usize = 16;
    let mut strings = Strings::default();
    let mut structure = Vec::new();
    write_node(root, phandles, &mut structure, &mut strings);
    structure.extend(9_u32.to_be_bytes());
    let structure_at = HEADER + RESERVATIONS;
    let strings_at = structure_at + structure.len();
    let total = strings_at + strings.bytes.len();
    let header =
        [0xd00d_feed, total, structure_at, strings_at, HEADER, 17, 16, 0, strings.bytes.len(), structure.len()];
    let mut tree: Vec<u8> = header.iter().flat_map(|&word| (word as u32).to_be_bytes()).collect();
    tree.extend([0; RESERVATIONS]);
    tree.extend(structure);
    tree.extend(strings.bytes);
    tree
}

/// The names of properties, each once.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    places: BTreeMap<String, u32>,
}

impl Strings {
    fn place(&mut self, name: &str) -> u32 {
        let bytes = &mut self.bytes;
        *self.places.entry(name.into()).or_insert_with(|| {
            let place = bytes.len() as u32;
            bytes.extend(name.bytes());
            bytes.push(0);
            place
        })
    }
}

fn write_node(node: &Node, phandles: &BTreeMap<String, u32>, structure: &mut Vec<u8>, strings: &mut Strings) {
    let pad = |structure: &mut Vec<u8>| structure.resize(structure.len().next_multiple_of(4), 0);
    structure.extend(1_u32.to_be_bytes());
    structure.extend(node.name.bytes());
    structure.push(0);
    pad(structure);
    let mut property = |name: &str, value: &[u8]| {
        structure.extend([3, value.len() as u32, strings.place(name)].iter().flat_map(|word| word.to_be_bytes()));
        structure.extend(value);
        pad(structure);
    };
    for (name, values) in &node.properties {
        let mut bytes = Vec::new();
        for value in values {
            match value {
                Value::Text(text) => bytes.extend(text.bytes().chain([0])),
                Value::Cell(cell) => bytes.extend(cell.to_be_bytes()),
                Value::Reference(label) => bytes.extend(phandles[label].to_be_bytes()),
                Value::Byte(byte) => bytes.push(*byte),
            }
        }
        property(name, &bytes);
    }
    if let Some(phandle) = node.label.as_ref().and_then(|label| phandles.get(label)) {
        property("phandle", &phandle.to_be_bytes());
    }
    for child in &node.children {
        write_node(child, phandles, structure, strings);
    }
    structure.extend(2_u32.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtoolkit::fdt::Fdt;
    use dtoolkit::{Node as _, Property as _};

    const SOURCE: &str = r#"/dts-v1/;
        // A comment, { and one
        /* of two
           lines; */ / {
            #address-cells = <2>;
            compatible = "maker,board", "maker,chip"; empty;
            soc {
                controller: interrupt-controller@c000000 { reg = <0x0 0xc000000 0 4096>; };
                device@1000 {
                    interrupt-parent = <&controller>;
                    wires = <&controller 7>, <&controller 8>;
                    address = [02 00 fe];
                };
            };
        };
    "#;

    #[test]
    fn a_source_becomes_the_tree_that_another_reader_finds() {
        let tree = compile(SOURCE).unwrap();
        let tree = Fdt::new(&tree).unwrap();
        let value = |path: &str, name: &str| {
            let node = tree.find_node(path).unwrap();
            node.property(name).unwrap().value().to_vec()
        };
        assert_eq!(value("/", "compatible"), b"maker,board\0maker,chip\0");
        assert_eq!(value("/", "empty"), b"");
        assert_eq!(value("/", "#address-cells"), [0, 0, 0, 2]);
        assert_eq!(
            value("/soc/interrupt-controller@c000000", "reg"),
            [[0; 4], [0x0c, 0, 0, 0], [0; 4], [0, 0, 0x10, 0]].concat()
        );
        assert_eq!(value("/soc/interrupt-controller@c000000", "phandle"), [0, 0, 0, 1]);
        assert_eq!(value("/soc/device@1000", "interrupt-parent"), [0, 0, 0, 1]);
        assert_eq!(value("/soc/device@1000", "wires"), [0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 8]);
        assert_eq!(value("/soc/device@1000", "address"), [2, 0, 0xfe]);
    }

    #[test]
    fn wrong_sources_are_refused_with_their_line() {
        let error = |source: &str| compile(source).unwrap_err().to_string();
        assert_eq!(error(""), "line 1: the source ends in the middle");
        assert_eq!(error("/dts-v1/;\n/ {\n a = 7;\n};"), "line 3: `7` is no value");
        assert_eq!(error("/dts-v1/;\n/ {\n a = <x>; };"), "line 3: `x` is no number of 32 bits");
        assert_eq!(error("/dts-v1/;\n/ { a = <0x100000000>; };"), "line 2: `0x100000000` is no number of 32 bits");
        assert_eq!(error("/dts-v1/;\n/ { a = [1]; };"), "line 2: `1` is no byte of two digits");
        assert_eq!(error("/dts-v1/;\n/ { a = \"x; };"), "line 2: a text without an end");
        assert_eq!(error("/dts-v1/;\n/ { a = <&b>; };"), "no node has the label `b`");
        assert_eq!(error("/dts-v1/;\n/ { b: c {}; b: d {}; };"), "line 2: a second label `b`");
        assert_eq!(error("/dts-v1/;\n/ {};\n/ {};"), "line 3: `/` is behind the tree");
        assert_eq!(error("/dts-v1/;\n/ { a }"), "line 2: `}` where `;` belongs");
        for end in 0..SOURCE.len() - 20 {
            let _ = compile(&SOURCE[..end]);
        }
    }

    /// The platform's tests have the compiled tree.
    #[test]
    fn the_tree_of_the_board_is_that_of_the_platforms_tests() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let source = std::fs::read_to_string(root.join("boards/icicle.dts")).unwrap();
        let tree = compile(&source).unwrap();
        assert!(Fdt::new(&tree).is_ok());
        let kept = std::fs::read(root.join("kernel/platform/fixtures/icicle.dtb")).unwrap();
        assert!(tree == kept, "copy the tree that `cargo xtask run --board icicle` leaves as cops/icicle.dtb there");
    }
}
