//! Compares the reference page in the tree with the tables.

#[path = "../examples/reference.rs"]
mod reference;

#[test]
fn page_in_the_tree_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sel4-calls.md");
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == reference::page(),
        "docs/sel4-calls.md differs from the tables: cargo run -p abi-sel4 --example reference > docs/sel4-calls.md"
    );
}
