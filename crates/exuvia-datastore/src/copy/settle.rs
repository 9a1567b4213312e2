//! Brings the targets of one source in step with it: read, copied, and compared with what the server then has.

use exuvia_api::datastore_reason as reason;
use exuvia_sweep::ResourceVersion;
use exuvia_write::Deleted;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use serde_json::Value;

use super::compared::another_name;
use super::contested::mark;
use super::findings::Problem;
use super::follow::Followed;
use super::ledger::{InStep, Key, Made, Named};
use super::marks::written_by_others;
use super::target::{Place, UNKNOWN_TARGET, has_owners};
use super::trial::{held_by, key, key_of};
use super::watched::uid_key;
use super::{Mover, content_of};
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;
use crate::owners::{Lookup, Outcome, Owners, source_uids};

/// One to find what a former object left, one to find the place free, and one at what was made; and one more, as others
/// write, too.
const MAX_LOOKS: usize = 4;

/// What came of one source.
#[derive(Debug)]
pub(super) enum Settled {
    /// Its targets are in step.
    InStep,
    /// It cannot be copied now.
    Held(Problem),
    /// A target of it exists and differs; it is among the findings.
    Conflict,
    /// A target is not what was written.
    Wrong(Problem),
}

/// What came of one target that nobody wants any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// It is not there, or not ours.
    Gone,
    /// It is still there.
    Going,
    /// Somebody else has written to it: it stays.
    Edited,
}

/// One source in work.
struct InWork<'a> {
    followed: &'a Followed,
    key: Key,
    kind: &'a Kind,
    source: &'a DynamicObject,
    lookup: &'a Lookup,
}

impl Mover {
    /// Brings the targets of one source in step with what it is now. The ledger knows of it afterwards only if they are.
    pub(super) async fn settle(
        &self,
        followed: &Followed,
        (key, named): (Key, &Named),
        lookup: &Lookup,
    ) -> Result<Settled, Error> {
        let kind = &followed.sources[named.kind];
        let source = self.read(kind, named.namespace.as_deref(), &named.name).await?;
        let mut now = None;
        if let Some(source) = &source {
            let converted = match self.movable(source).await {
                Ok(converted) => converted,
                Err(problem) => return Ok(Settled::Held(problem)),
            };
            if let Some(problem) = followed.hidden_content(self, kind, source).await? {
                return Ok(Settled::Held(problem));
            }
            let work = InWork {
                followed,
                key,
                kind,
                source,
                lookup,
            };
            let mut targets = Vec::new();
            for output in converted.iter().flat_map(|converted| &converted.outputs) {
                match self.settle_output(&work, output).await? {
                    Ok(made) => targets.push(made),
                    Err(settled) => return Ok(settled),
                }
            }
            let owners = source.metadata.owner_references.iter().flatten();
            now = Some(InStep {
                named: named.clone(),
                uid: uid_key(source.metadata.uid.as_deref()),
                version: ResourceVersion::of(&source.metadata),
                owners: owners.map(|owner| uid_key(Some(&owner.uid))).collect(),
                targets,
            });
        }
        let before = lock(&followed.ledger).before(key);
        // What it became before and does not become any more.
        for made in before.iter().flat_map(|before| &before.targets) {
            let kept = now.iter().flat_map(|now| &now.targets);
            if kept.into_iter().any(|kept| kept.place == made.place) || !made.is_ours {
                continue;
            }
            let target = &followed.targets[made.named.kind];
            match self.withdraw(target, &made.named).await? {
                Withdrawn::Gone => {}
                Withdrawn::Going => return Err(Error::Changed("a target is still being deleted")),
                Withdrawn::Edited => {
                    let mapping = &self.migration.spec.mappings[made.mapping].name;
                    let place = (made.named.namespace.as_deref(), &*made.named.name);
                    self.contested(&kind.resource.kind, mapping, (target, place), mark());
                    return Ok(Settled::Conflict);
                }
            }
        }
        let mut ledger = lock(&followed.ledger);
        ledger.settled(key, now.clone());
        // Others name a successor by its uid: if it went or was made again, they must follow before anybody collects them.
        if let Some(before) = before
            && successor(&before) != now.as_ref().and_then(successor)
        {
            ledger.owner_changed(before.uid);
        }
        Ok(Settled::InStep)
    }

    async fn settle_output(
        &self,
        work: &InWork<'_>,
        output: &Output,
    ) -> Result<Result<Made, Settled>, Error> {
        let InWork { followed, source, .. } = *work;
        let target = self.kinds.target(&output.group, &output.kind);
        let index = target.and_then(|target| followed.targets.iter().position(|kind| kind == target));
        let (Some(target), Some(index)) = (target, index) else {
            return Err(Error::Changed(UNKNOWN_TARGET));
        };
        let place = key_of(output);
        let named = Named {
            kind: index,
            namespace: output.namespace.as_deref().map(Into::into),
            name: output.name.as_str().into(),
        };
        // Before anything is written, so that what appears there is known to be wanted.
        if !lock(&followed.ledger).claim(place, &named, work.key) {
            let problem = Problem::new(
                reason::NAME_COLLISION,
                "another source also becomes its target: let the mapping give them different names",
            );
            return Ok(Err(Settled::Held(problem)));
        }
        let made = |metadata: Option<&kube::api::ObjectMeta>, is_ours| Made {
            place,
            named: named.clone(),
            version: metadata.and_then(ResourceVersion::of),
            uid: uid_key(metadata.and_then(|metadata| metadata.uid.as_deref())),
            mapping: output.mapping,
            is_ours,
            is_successor: !output.extra,
        };
        let references = match self.owners_of(work, output).await? {
            Ok(references) => references,
            Err(held) => return Ok(Err(held)),
        };
        if let Some(problem) = self.collected_early(target, &references) {
            return Ok(Err(Settled::Held(problem)));
        }
        Box::pin(self.learn_alias(target, source, output)).await?;
        // What the server has after each write is what counts. Its answer to the write says so as well as another read does.
        let mut answer = None;
        for look in 0..MAX_LOOKS {
            let there = match answer.take() {
                Some(live) => Ok(Place::Ours(live)),
                None => self.place(target, output).await?,
            };
            let live = match there {
                Err(problem) => return Ok(Err(Settled::Held(problem))),
                Ok(Place::Equal(live)) => {
                    self.note_successor(source, output, target, &live);
                    return Ok(Ok(made(Some(&live.metadata), false)));
                }
                Ok(Place::Differs(_)) if self.prefers_target() => return Ok(Ok(made(None, false))),
                Ok(Place::Differs(field)) => {
                    self.differs(work.kind, target, output, field);
                    return Ok(Err(Settled::Conflict));
                }
                Ok(Place::Contested(field)) => {
                    return Ok(Err(self.contested_at(work, output, target, field)));
                }
                Ok(Place::Free) => None,
                Ok(Place::Ours(live)) => Some(live),
            };
            if let Some(live) = live
                .as_deref()
                .filter(|live| look == 0 && !self.is_as_known(place, live))
            {
                self.mark_as_edited(target, live).await?;
                return Ok(Err(self.contested_at(work, output, target, mark())));
            }
            // A status that the server has dropped is not written again and again: it is not as it was written.
            let needs_no_write = |live: &DynamicObject| {
                is_of(source, live)
                    && self.is_up_to_date(source, live, output)
                    && has_owners(live, &references)
                    && (look > 0 || self.has_its_status(target, live, source, output))
            };
            if let Some(live) = live.as_deref().filter(|live| needs_no_write(live)) {
                if let Err(problem) = self.is_as_written(target, live, source, output).await? {
                    return Ok(Err(Settled::Wrong(problem)));
                }
                self.note_successor(source, output, target, live);
                lock(&self.known).insert(place, content_of(live));
                return Ok(Ok(made(Some(&live.metadata), true)));
            }
            lock(&self.known).remove(&place);
            let written = self.write_target(target, work, output, live.as_deref(), &references);
            answer = match written.await? {
                Ok(written) => {
                    let is_all_there_is = |live: &DynamicObject| {
                        live.metadata.deletion_timestamp.is_none() && self.is_ours_alone(live)
                    };
                    written.filter(is_all_there_is).map(Box::new)
                }
                Err(held) => return Ok(Err(held)),
            };
        }
        Err(Error::Changed("a target is not as it was written"))
    }

    /// Whether a target has the status of its source, where that is written by itself. It is owed until it is written.
    fn has_its_status(
        &self,
        target: &Kind,
        live: &DynamicObject,
        source: &DynamicObject,
        output: &Output,
    ) -> bool {
        let status = self.status_of(output).filter(|_| target.has_status);
        status.is_none_or(|status| Self::has_only_status_of(live, source, &status))
    }

    fn contested_at(&self, work: &InWork<'_>, output: &Output, target: &Kind, field: String) -> Settled {
        let mapping = &self.migration.spec.mappings[output.mapping].name;
        let place = (output.namespace.as_deref(), output.name.as_str());
        self.contested(&work.kind.resource.kind, mapping, (target, place), field);
        Settled::Conflict
    }

    /// The references to write; otherwise what they wait for.
    async fn owners_of(
        &self,
        work: &InWork<'_>,
        output: &Output,
    ) -> Result<Result<Vec<OwnerReference>, Settled>, Error> {
        let owners = Owners {
            kinds: self.owner_kinds(),
            successors: self,
            lookup: work.lookup,
        };
        let from = work.source.metadata.namespace.as_deref();
        let references = if output.extra { &[][..] } else { &output.owners };
        let policy = self.migration.spec.references.missing_owner;
        let rewritten = owners.rewritten(references, (from, output.namespace.as_deref()), policy);
        Ok(match rewritten.await {
            Outcome::Ready { references, .. } => Ok(references),
            Outcome::WaitFor(_) => Err(Settled::Held(Problem::new(
                reason::MISSING_OWNER,
                "its owner is not copied yet",
            ))),
            Outcome::Held(faults) => match held_by::<()>(&faults)? {
                Ok(()) => Ok(Vec::new()),
                Err(problem) => Err(Settled::Held(problem)),
            },
        })
    }

    fn note_successor(&self, source: &DynamicObject, output: &Output, target: &Kind, live: &DynamicObject) {
        if !output.extra {
            self.note(&self.uids_of(source, output), target, &live.metadata);
        }
    }

    /// Creates the target, or brings it up to date; returns what the server has then. One that was made from another object of
    /// the same name is made again: `None`, as for all that the next look must tell.
    async fn write_target(
        &self,
        target: &Kind,
        work: &InWork<'_>,
        output: &Output,
        live: Option<&DynamicObject>,
        references: &[OwnerReference],
    ) -> Result<Result<Option<DynamicObject>, Settled>, Error> {
        let source = work.source;
        if let Some(former) = live.filter(|live| !is_of(source, live)) {
            return self.make_room(target, former).await.map(|()| Ok(None));
        }
        let wanted = self.wanted(target, source, output, references);
        let written = match live {
            None => match self.create(target, &wanted).await? {
                Ok(Some(created)) => created,
                Ok(None) => return Ok(Ok(None)), // somebody was faster: the next look says who
                Err(problem) => return Ok(Err(Settled::Held(problem))),
            },
            Some(live) if self.is_up_to_date(source, live, output) && has_owners(live, references) => {
                live.clone()
            }
            Some(live) => match self.update(target, live, &wanted, (source, output)).await? {
                Ok(updated) => updated,
                // A field may be immutable. Nobody uses the target yet, so it is made again, if it can be.
                Err(problem) => {
                    if self.can_be_created(target, output, &wanted).await? {
                        return self.make_room(target, live).await.map(|()| Ok(None));
                    }
                    return Ok(Err(Settled::Held(problem)));
                }
            },
        };
        if !self.has_its_status(target, &written, source, output)
            && let Some(status) = self.status_of(output)
        {
            let written = self.write_status(target, &written, source, &status).await?;
            return Ok(written.map(Some).map_err(Settled::Held));
        }
        Ok(Ok(Some(written)))
    }

    /// Whether the server would take it as a new object.
    async fn can_be_created(&self, target: &Kind, output: &Output, wanted: &Value) -> Result<bool, Error> {
        let mut object = wanted.clone();
        object["metadata"]["name"] = another_name(&output.name).into();
        object["apiVersion"] = target.through.api_version.as_str().into();
        Ok(self.rehearse(&target.all(&self.client), &object).await?.is_ok())
    }

    /// Deletes a target of ours that is made again: the next look finds its place free.
    async fn make_room(&self, target: &Kind, former: &DynamicObject) -> Result<(), Error> {
        let api = target.all_metadata(&self.client);
        self.forget_successors();
        match self.delete(&api, &former.metadata).await? {
            Deleted::Gone => Ok(()),
            Deleted::Going(_) => Err(Error::Changed("a target is still being deleted")),
        }
    }

    /// Deletes a target that no source wants, if it is ours and nobody else has written to it.
    pub(super) async fn withdraw(&self, target: &Kind, named: &Named) -> Result<Withdrawn, Error> {
        let live = self.read(target, named.namespace.as_deref(), &named.name).await?;
        let Some(live) = live.filter(|live| self.is_ours(live)) else {
            return Ok(Withdrawn::Gone);
        };
        if written_by_others(&live.metadata) {
            return Ok(Withdrawn::Edited);
        }
        let place = key(&target.shown(), named.namespace.as_deref(), &named.name);
        if !self.is_as_known(place, &live) {
            self.mark_as_edited(target, &live).await?;
            return Ok(Withdrawn::Edited);
        }
        lock(&self.known).remove(&place);
        let api = target.all_metadata(&self.client);
        self.forget_successors();
        match self.delete(&api, &live.metadata).await {
            Ok(Deleted::Gone) => Ok(Withdrawn::Gone),
            Ok(Deleted::Going(_)) => Ok(Withdrawn::Going),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a target was made from this object, and not from another one of its name.
fn is_of(source: &DynamicObject, live: &DynamicObject) -> bool {
    let uid = source.metadata.uid.as_deref().unwrap_or_default();
    source_uids(&live.metadata).any(|known| known == uid)
}

/// The place and uid of what takes a source's place.
fn successor(source: &InStep) -> Option<(Key, Key)> {
    let mut targets = source.targets.iter();
    let made = targets.find(|made| made.is_successor)?;
    Some((made.place, made.uid))
}
