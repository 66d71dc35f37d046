//! That the documents are true where a program can tell.

use std::collections::BTreeSet;

use super::{files, none, root};

/// The target of every `](target)` in a line of Markdown.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn relative_links_lead_somewhere() {
    let mut broken = Vec::new();
    for file in files().into_iter().filter(|file| file.path.ends_with(".md")) {
        let folder = root().join(&file.path).parent().expect("a file lies in a folder").to_path_buf();
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            for link in links(line).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
                let path = link.split('#').next().unwrap_or("");
                if !path.is_empty() && !folder.join(path).exists() {
                    broken.push(format!("{}:{}: {link}", file.path, index + 1));
                }
            }
        }
    }
    none("a relative link of a document leads to a file", broken);
}

/// The paths in the first column of the code map of `docs/architecture.md`.
fn code_map() -> BTreeSet<String> {
    let files = files();
    let page = files.iter().find(|file| file.path == "docs/architecture.md").expect("docs/architecture.md is there");
    let (_, section) = page.text.split_once("\n## Code map").expect("it has a section `Code map`");
    let section = section.split("\n## ").next().unwrap_or("");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.split('`').nth(1)).map(str::to_owned).collect()
}

#[test]
fn the_code_map_is_true() {
    let map = code_map();
    assert!(map.len() > 10, "the code map has only {} rows", map.len());
    let missing = map.iter().filter(|path| !root().join(path).exists());
    let mut wrong: Vec<String> = missing.map(|path| format!("{path} does not exist")).collect();
    // Every folder of source that stands directly in a package, and every folder in it, has its row.
    for file in files().iter().filter(|file| file.path.ends_with(".rs") && file.path.contains("src/")) {
        let parts: Vec<&str> = file.path.split('/').collect();
        let src = parts.iter().position(|part| *part == "src").expect("the path holds src/");
        let folder = format!("{}/", parts[..parts.len().min(src + 3) - 1].join("/"));
        if !map.contains(&folder) {
            wrong.push(format!("{folder} has no row"));
        }
    }
    wrong.sort();
    wrong.dedup();
    none("the code map of docs/architecture.md shows each folder of source, and only what is there", wrong);
}
