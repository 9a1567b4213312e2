//! What tables look like at which width.

use super::*;

fn table() -> Table {
    let row = |context: &str, crd: &str, stored: &str| Row {
        cells: vec![
            vec![Part::Text(context.into())],
            vec![Part::Text(crd.into())],
            vec![Part::Text(stored.into())],
            vec![Part::Text("v1alpha1 may still be stored".into())],
            vec![Part::Command(format!(
                "exuvia storage migrate {crd} --shed v1alpha1"
            ))],
        ],
        below: Vec::new(),
    };
    Table {
        columns: vec![
            Column::Group("CONTEXT"),
            Column::Fact("CRD"),
            Column::Fact("STORED"),
            Column::Prose("VERDICT", ""),
            Column::Prose("NEXT", "next"),
        ],
        rows: vec![
            row("east", "widgets.example.com", "v1alpha1,v1"),
            row("east", "gadgets.example.com", "v1"),
        ],
    }
}

fn widest(text: &str) -> usize {
    text.lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or_default()
}

#[test]
fn without_a_screen_there_is_one_line_per_row() {
    let text = table().render(None);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.starts_with("CONTEXT  CRD "), "{text}");
    assert_eq!(table().render(Some(200)), text, "it fits");
}

#[test]
fn one_long_sentence_does_not_push_the_next_column_of_other_rows_away() {
    let mut table = table();
    table.rows[0].cells[3] = vec![Part::Text("words ".repeat(30))];
    let text = table.render(None);
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[1].contains(&"words ".repeat(30)), "whole: {text}");
    assert!(rows[2].chars().count() < 150, "{text}");
    assert_eq!(rows[0].find("NEXT"), rows[2].find("exuvia storage"), "{text}");
}

#[test]
fn sentences_go_below_the_row_when_it_is_too_long() {
    let text = table().render(Some(80));
    let wanted = "\
CONTEXT  CRD                  STORED
east     widgets.example.com  v1alpha1,v1
  v1alpha1 may still be stored
  next: exuvia storage migrate widgets.example.com --shed v1alpha1
east     gadgets.example.com  v1
  v1alpha1 may still be stored
  next: exuvia storage migrate gadgets.example.com --shed v1alpha1
";
    assert_eq!(text, wanted);
}

#[test]
fn a_long_context_becomes_a_heading_and_a_broken_command_can_still_be_copied() {
    let mut table = table();
    for row in &mut table.rows {
        row.cells[0] = vec![Part::Text(
            "arn:aws:eks:eu-west-1:123456789012:cluster/prod".into(),
        )];
    }
    let text = table.render(Some(60));
    assert!(widest(&text) <= 60, "{text}");
    assert!(
        text.contains(
            "\ncontext arn:aws:eks:eu-west-1:123456789012:cluster/prod\nwidgets.example.com  v1alpha1,v1\n"
        ),
        "{text}"
    );
    assert_eq!(text.matches("arn:").count(), 1, "{text}");
    assert!(
        text.contains("  next: exuvia storage migrate widgets.example.com \\\n    --shed v1alpha1\n"),
        "{text}"
    );
}

#[test]
fn a_cell_that_is_too_long_goes_on_below_itself_and_a_name_is_not_broken() {
    let table = Table {
        columns: vec![Column::Fact("CRD"), Column::Fact("STORED")],
        rows: vec![
            Row::of(["long.plurals.example.com", "v1alpha1,v1alpha2,v1beta1,v1beta2,v1"]),
            Row::of(["short.example.com", "v1"]),
        ],
    };
    let wanted = "\
CRD                  STORED
long.plurals.example.com
                     v1alpha1,v1alpha2,
                     v1beta1,v1beta2,v1
short.example.com    v1
";
    assert_eq!(table.render(Some(40)), wanted);
}

#[test]
fn what_others_wrote_breaks_no_line_and_colours_nothing() {
    let table = Table {
        columns: vec![Column::Fact("REASON")],
        rows: vec![Row::of(["red\u{1b}[31m\nline"])],
    };
    let text = table.render(None);
    assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
}
