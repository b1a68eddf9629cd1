//! Links the program with the script and the options of COPS programs.

fn main() {
    println!("cargo::rerun-if-changed=../../user/runtime/program.ld");
    if std::env::var("TARGET").is_ok_and(|target| target == "riscv64gc-unknown-none-elf") {
        let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the manifest is");
        println!("cargo::rustc-link-arg-bins=-T{here}/../../user/runtime/program.ld");
        // Position-independent: the program relocates itself.
        for argument in ["-pie", "--no-dynamic-linker", "-znotext", "--pack-dyn-relocs=relr"] {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
