//! Who may depend on whom, and that every dependency is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{files, none, root};

/// The arrows of `docs/architecture.md`: a package may depend on these of our own and no other.
const ARROWS: [(&str, &[&str]); 11] = [
    ("warpweft", &["warpweft-device", "warpweft-kernels", "warpweft-comm", "warpweft-schedule", "warpweft-trainer"]),
    ("warpweft-trainer", &["warpweft-device", "warpweft-kernels", "warpweft-comm", "warpweft-schedule"]),
    ("warpweft-schedule", &[]),
    ("warpweft-capi", &["warpweft-device", "warpweft-kernels", "warpweft-comm"]),
    ("warpweft-comm", &["warpweft-device"]),
    ("warpweft-kernels", &["warpweft-device"]),
    ("warpweft-device", &["warpweft-ptxvm"]),
    ("warpweft-ptxvm", &["warpweft-ptxvm-isa"]),
    ("warpweft-ptxvm-isa", &[]),
    ("ptxvm_driver", &["warpweft-ptxvm"]),
    ("warpweft-benches", &[]),
];

struct Package {
    name: String,
    /// Dependencies of every kind, ours and others'.
    dependencies: BTreeSet<String>,
    /// Those that an embedder gets: no development dependencies.
    shipped: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let manifests = files().into_iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let packages = manifests.map(|file| {
        let manifest: toml::Table = file.text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.path));
        let name = manifest["package"]["name"].as_str().expect("a package has a name").to_owned();
        let names = |kind: &str| -> BTreeSet<String> {
            let table = manifest.get(kind).and_then(toml::Value::as_table);
            table.into_iter().flat_map(|table| table.keys().cloned()).collect()
        };
        let shipped: BTreeSet<String> = names("dependencies").union(&names("build-dependencies")).cloned().collect();
        let dependencies = shipped.union(&names("dev-dependencies")).cloned().collect();
        Package { name, dependencies, shipped }
    });
    packages.collect()
}

fn is_ours(name: &str) -> bool {
    ARROWS.iter().any(|(ours, _)| *ours == name)
}

#[test]
fn dependencies_point_one_way() {
    let arrows = BTreeMap::from(ARROWS);
    let mut wrong = Vec::new();
    for package in packages() {
        let Some(allowed) = arrows.get(package.name.as_str()) else {
            wrong.push(format!("{} is not in the list of arrows", package.name));
            continue;
        };
        let ours = package.shipped.iter().filter(|name| is_ours(name));
        wrong.extend(
            ours.filter(|name| !allowed.contains(&name.as_str())).map(|name| format!("{} -> {name}", package.name)),
        );
    }
    none("packages depend on each other only as docs/architecture.md draws it", wrong);
}

#[test]
fn an_embedder_gets_no_command() {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml"))
        .expect("the root manifest can be read")
        .parse()
        .expect("the root manifest is TOML");
    let dependencies = manifest["dependencies"].as_table().expect("the root package has dependencies");
    let always = dependencies.iter().filter(|(name, value)| {
        let optional = value.get("optional").and_then(toml::Value::as_bool).unwrap_or(false);
        !is_ours(name) && !optional
    });
    none("what only the command needs stands behind the feature `cli`", always.map(|(name, _)| name.clone()).collect());
}

/// The rows of the table of dependencies in `docs/architecture.md`: the crate, its users, the reason.
fn table() -> BTreeMap<String, (BTreeSet<String>, String)> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md can be read");
    let (_, section) = text.split_once("\n## Dependencies").expect("it has a section `Dependencies`");
    let section = section.split("\n## ").next().unwrap_or("");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, users, why] = cells[..] else { panic!("a row of three cells is wanted: {row}") };
        let users = users.split(',').map(|user| user.trim().to_owned()).collect();
        (name.trim_matches('`').to_owned(), (users, why.to_owned()))
    })
    .collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let short = package.name.strip_prefix("warpweft-").unwrap_or(&package.name).to_owned();
        for name in package.dependencies.iter().filter(|name| !is_ours(name)) {
            used.entry(name.clone()).or_default().insert(short.clone());
        }
    }
    let table = table();
    let mut wrong = Vec::new();
    for (name, users) in &used {
        match table.get(name) {
            None => wrong.push(format!("`{name}`, used by {users:?}, is not in the table")),
            Some((listed, _)) if listed != users => {
                wrong.push(format!("`{name}` is used by {users:?}; the table says {listed:?}"));
            }
            Some((_, why)) if why.len() < 10 => wrong.push(format!("`{name}` has no reason")),
            Some(_) => {}
        }
    }
    wrong.extend(table.keys().filter(|name| !used.contains_key(*name)).map(|name| format!("`{name}` is not used")));
    none("docs/architecture.md lists every dependency with its users and its reason", wrong);
}

#[test]
fn the_source_of_packages_is_the_default_one() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is committed");
    // Cargo writes the registry's address; a repository, a folder or a second registry would start or read otherwise.
    let sources: BTreeSet<_> = lock.lines().filter(|line| line.starts_with("source = ")).collect();
    assert!(
        sources.len() == 1 && sources.iter().all(|source| source.starts_with("source = \"registry+")),
        "{sources:?}"
    );
    assert!(!root().join(".cargo").exists(), "settings of one machine (.cargo/) are not part of the project");
    // No file sends a user's package manager to a host of somebody's choice; put together so as not to find itself.
    let hosts =
        [["--index", "-url"], ["PIP_", "INDEX"], ["replace", "-with"], ["[source", ".crates-io"], ["GO", "PROXY"]];
    let hosts = hosts.map(|parts| parts.concat());
    let named = files().into_iter().filter(|file| hosts.iter().any(|host| file.text.contains(host.as_str())));
    none("no file names the host of a package registry", named.map(|file| file.path).collect());
}
