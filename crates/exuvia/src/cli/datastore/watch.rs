//! Follows migrations: a terminal is drawn over, a pipe gets a line for what changed.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use exuvia_api::{DatastoreMigration, DatastorePhase, counted};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::signal::unix::{SignalKind, signal};

use super::args::LeaseArgs;
use super::lease::{Operator, Operators};
use super::migrations;
use super::status::{Answer, detail, overview, said, said_of_all};
use crate::cli::args::ClusterArgs;
use crate::cli::cluster::Cluster;
use crate::cli::output::{Format, reader_gone, remark, say_while_read, seconds};
use crate::cli::table::{over_the_last, screen_width};

/// Follows one migration to its end: 0 if it is complete or gone, 1 if it has failed. A signal ends it, and that is success.
pub(super) async fn one(
    cluster: &Cluster,
    args: &ClusterArgs,
    lease: &LeaseArgs,
    name: &str,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(args);
    let mut operators = Operators::new(lease);
    let mut last = Some(migrations::get(cluster, name).await?);
    let stop = stopped()?;
    let mut stop = std::pin::pin!(stop);
    loop {
        let goes_on = match &last {
            Some(migration) => {
                let operator = tokio::select! {
                    operator = operators.of(cluster, migration) => operator,
                    () = &mut stop => return screen.end(),
                };
                let text = || {
                    let width = screen_width();
                    let text = detail(migration, Timestamp::now(), width) + &said(operator.as_ref(), width);
                    args.in_commands(&text)
                };
                let answer = Answer::of(migration).with(operator.as_ref());
                let goes_on = screen.show(&answer, &line(migration), text)?;
                screen.note(operator.as_ref().and_then(Operator::trouble));
                goes_on
            }
            None => false,
        };
        let phase = last.as_ref().map(migrations::phase);
        let is_deleted = last
            .as_ref()
            .is_some_and(|migration| migration.metadata.deletion_timestamp.is_some());
        match phase {
            None => {
                remark(&format!("{name} is gone"));
                return Ok(ExitCode::SUCCESS);
            }
            Some(DatastorePhase::Complete) if !is_deleted => return Ok(ExitCode::SUCCESS),
            Some(DatastorePhase::Failed) if !is_deleted => return Ok(ExitCode::FAILURE),
            _ if !goes_on => return Ok(ExitCode::SUCCESS),
            _ => {}
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = &mut stop => return screen.end(),
        }
        // A server that does not answer for a while may come back.
        let found = tokio::select! {
            found = migrations::find(cluster, name) => found,
            () = &mut stop => return screen.end(),
        };
        match found {
            Ok(found) => last = found,
            Err(error) => screen.trouble(&crate::cli::sentence(&error)),
        }
    }
}

/// Follows all migrations until a signal comes.
pub(super) async fn all(
    cluster: &Cluster,
    args: &ClusterArgs,
    lease: &LeaseArgs,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(args);
    let mut operators = Operators::new(lease);
    let mut known = migrations::all(cluster).await?;
    let stop = stopped()?;
    let mut stop = std::pin::pin!(stop);
    loop {
        let found = tokio::select! {
            found = operators.of_all(cluster, &known) => found,
            () = &mut stop => return screen.end(),
        };
        let answers: Vec<Answer> = known
            .iter()
            .zip(&found)
            .map(|(migration, operator)| Answer::of(migration).with(operator.as_ref()))
            .collect();
        let lines: Vec<String> = known.iter().map(line).collect();
        let text = || {
            let width = screen_width();
            let text = overview(&known, Timestamp::now(), width) + &said_of_all(&found, width);
            args.in_commands(&text)
        };
        if !screen.show(&answers, &lines.join("\n"), text)? {
            return Ok(ExitCode::SUCCESS);
        }
        screen.note(found.iter().flatten().find_map(Operator::trouble));
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = &mut stop => return screen.end(),
        }
        let found = tokio::select! {
            found = migrations::all(cluster) => found,
            () = &mut stop => return screen.end(),
        };
        match found {
            Ok(found) => known = found,
            Err(error) => screen.trouble(&crate::cli::sentence(&error)),
        }
    }
}

/// Ends at a signal, or when the reader of the output has gone away.
fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            () = reader_gone() => {}
        }
    })
}

/// A migration in one line of a log.
pub(in crate::cli) fn line(migration: &DatastoreMigration) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let progress = status.progress.unwrap_or_default();
    let mut line = migration.name_any();
    line.push_str(&format!(": {}", migrations::phase(migration).as_str()));
    if !status.step.is_empty() {
        line.push_str(&format!("/{}", status.step));
    }
    if progress.total > 0 {
        let done = progress.migrated + progress.skipped;
        line.push_str(&format!(
            ", {done} of {}",
            counted(progress.total.unsigned_abs(), "object")
        ));
    }
    if progress.conflicts > 0 {
        line.push_str(&format!(", {} in conflict", progress.conflicts));
    }
    if !status.message.is_empty() {
        line.push_str(&format!(": {}", status.message));
    } else if migration.status.is_none() {
        line.push_str(
            ": no operator has looked at it yet; is one running, with datastore migration turned on?",
        );
    }
    line
}

/// Where it is shown, and what was shown last.
struct Screen {
    format: Format,
    redraws: bool,
    is_first: bool,
    last: String,
    last_trouble: String,
    last_note: String,
}

impl Screen {
    fn new(args: &ClusterArgs) -> Self {
        Self {
            format: args.output,
            redraws: args.output == Format::Table && std::io::stdout().is_terminal(),
            is_first: true,
            last: String::new(),
            last_trouble: String::new(),
            last_note: String::new(),
        }
    }

    /// `false`: nobody reads it any more.
    fn show(
        &mut self,
        answer: &impl serde::Serialize,
        line: &str,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        self.last_trouble.clear();
        if self.redraws {
            let head = format!(
                "at {}; Ctrl-C ends the watch, not the migration\n\n",
                seconds(Timestamp::now())
            );
            let drawn = over_the_last(&(head + &text()), self.is_first, "make the window larger");
            self.is_first = false;
            return say_while_read(&drawn);
        }
        let mut now = match self.format {
            Format::Table => format!("{line}\n"),
            Format::Json => serde_json::to_string(answer)? + "\n",
            format @ Format::Yaml => format!("---\n{}", format.text(answer, String::new)?),
        };
        if now == self.last {
            return Ok(true);
        }
        std::mem::swap(&mut self.last, &mut now);
        say_while_read(&self.last)
    }

    /// What is beside the migration, where the screen does not show it anyway. Machines have it in the answer.
    fn note(&mut self, note: Option<&str>) {
        let note = note.unwrap_or_default();
        if self.redraws || self.format != Format::Table || self.last_note == note {
            return;
        }
        if !note.is_empty() {
            remark(&format!("note: {note}"));
        }
        note.clone_into(&mut self.last_note);
    }

    /// Once, however often it comes again.
    fn trouble(&mut self, why: &str) {
        if self.last_trouble != why {
            remark(&format!("warning: {why}; trying again"));
            why.clone_into(&mut self.last_trouble);
        }
    }

    fn end(&self) -> anyhow::Result<ExitCode> {
        if self.redraws {
            say_while_read("\n")?; // the shell's prompt does not follow the `^C` that the terminal shows
        }
        Ok(ExitCode::SUCCESS)
    }
}
