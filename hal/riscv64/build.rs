//! Lets every kernel binary find the linker script: it links with `-Tkernel.ld` and cargo adds this search path.

use std::env;

fn main() {
    let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
    println!("cargo:rustc-link-search={directory}");
    println!("cargo:rerun-if-changed=kernel.ld");
}
