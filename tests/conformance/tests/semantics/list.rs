//! The list of points in `docs/verbs.md` and the tests that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Points of the list.
const POINTS: usize = 45;

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether a byte may stand in a name.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Names in a text that follow `before` and are those of points.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let prefix = format!("{before}semantics_");
    text.match_indices(&prefix)
        .map(|(at, _)| &text[at + before.len()..])
        .map(|rest| rest.bytes().take_while(|byte| is_word(*byte)).count())
        .zip(text.match_indices(&prefix))
        .map(|(len, (at, _))| text[at + before.len()..][..len].to_owned())
        .filter(|name| {
            name.as_bytes()[10..]
                .first()
                .is_some_and(u8::is_ascii_digit)
        })
        .collect()
}

/// Functions with such names in the sources below a folder.
fn defined(folder: &str, extension: &str, before: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![tree().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                let text = fs::read_to_string(&path).expect("a source");
                found.append(&mut names(&text, before));
            }
        }
    }
    found
}

/// Rows of the table: number of the point, and the cells.
fn rows() -> Vec<(usize, String)> {
    let text = fs::read_to_string(tree().join("docs/verbs.md")).expect("docs/verbs.md");
    text.lines()
        .filter_map(|line| {
            let number = line.strip_prefix("| ")?.split(' ').next()?;
            Some((number.parse().ok()?, line.to_owned()))
        })
        .collect()
}

#[test]
fn every_point_has_tests_and_the_list_names_them_all() {
    let rows = rows();
    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=POINTS).collect::<Vec<_>>());
    let scenarios = fs::read_to_string(tree().join("tests/scenarios/src/main.rs"));
    let scenarios = scenarios.expect("the scenarios");
    let mut listed = BTreeSet::new();
    for (number, row) in &rows {
        let tests = names(row, "`");
        let guests: Vec<&str> = row.split("scenario `").skip(1).collect();
        assert!(
            !tests.is_empty() || !guests.is_empty(),
            "point {number} has no test"
        );
        for test in tests {
            let own = format!("semantics_{number:02}_");
            assert!(
                test.starts_with(&own),
                "{test} in the row of point {number}"
            );
            listed.insert(test);
        }
        for guest in guests {
            let name = guest.split('`').next().expect("a name");
            let known = scenarios.contains(&format!("(\"{name}\","));
            assert!(known, "point {number}: there is no scenario {name}");
        }
    }
    let mut tests = defined("tests/conformance/tests", "rs", "fn ");
    tests.append(&mut defined("tests/scenarios/src", "rs", "fn "));
    tests.append(&mut defined("resources/provider", "c", "static void "));
    let unlisted: Vec<_> = tests.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&tests).collect();
    assert!(unlisted.is_empty(), "not in docs/verbs.md: {unlisted:?}");
    assert!(gone.is_empty(), "in docs/verbs.md only: {gone:?}");
}
