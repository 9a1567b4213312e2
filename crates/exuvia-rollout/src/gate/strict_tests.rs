//! Every row of the strict table, and the order of the rows.

use super::*;

const US: &str = "0a1b";
const THEM: &str = "9f9f";

/// Our pod of epoch 5, its owner alive, and a target that it applied itself.
fn converged() -> Observed {
    Observed {
        ours: Some(Token::new(US, 5)),
        config: Config::Whole,
        owner: Owner::Live(US.to_owned()),
        target: stamped(US, 5),
        template: Template::Unread,
    }
}

fn present(token: Stamp<Token>) -> Present {
    Present {
        token,
        controller: Some(US.to_owned()),
        same_intent: true,
        ..Present::default()
    }
}

fn stamped(uid: &str, epoch: u64) -> Target {
    Target::Present(present(Stamp::Found(Token::new(uid, epoch))))
}

fn at(target: Target) -> Observed {
    Observed {
        target,
        ..converged()
    }
}

#[track_caller]
fn expect(observed: &Observed, row: u8, action: Action) {
    let decision = decide(observed);
    assert_eq!((decision.row, decision.action), (row, action), "{observed:?}");
}

#[test]
fn row_1_what_cannot_be_read_is_an_error_whatever_else_holds() {
    expect(&at(Target::Unread), 1, Action::Error);
    for target in [Target::Unread, Target::Absent, stamped(US, 9)] {
        let unread = Observed {
            owner: Owner::Unread,
            config: Config::Torn,
            ours: None,
            ..at(target)
        };
        expect(&unread, 1, Action::Error);
    }
    let gone = Observed {
        owner: Owner::Gone,
        ..at(Target::Unread)
    };
    expect(&gone, 1, Action::Error);
}

#[test]
fn row_2_an_owner_that_is_gone_or_going_orphans_us_even_with_torn_config() {
    for owner in [Owner::Gone, Owner::Deleting] {
        for target in [Target::Absent, stamped(US, 1), stamped(THEM, 9)] {
            let observed = Observed {
                owner: owner.clone(),
                config: Config::Torn,
                ..at(target)
            };
            expect(&observed, 2, Action::RefuseOrphan);
        }
    }
}

#[test]
fn row_3_torn_config_is_refused_even_where_nothing_would_be_done() {
    for target in [Target::Absent, stamped(US, 1), stamped(US, 5), stamped(US, 9)] {
        let torn = Observed {
            config: Config::Torn,
            ..at(target)
        };
        expect(&torn, 3, Action::RefuseTorn);
    }
    assert_eq!(Config::from_hashes("a", Some("a")), Config::Whole);
    assert_eq!(Config::from_hashes("a", Some("b")), Config::Torn);
    assert_eq!(Config::from_hashes("a", None), Config::Whole);
}

#[test]
fn rows_4_and_5_without_a_token_only_what_nobody_stamped_is_applied() {
    for target in [Target::Absent, Target::Present(present(Stamp::Absent))] {
        let observed = Observed {
            ours: None,
            ..at(target)
        };
        expect(&observed, 4, Action::ApplyUnstamped);
        assert!(decide(&observed).is_warned);
    }
    for target in [
        stamped(US, 1),
        stamped(THEM, 1),
        Target::Present(present(Stamp::Unparsable)),
    ] {
        let observed = Observed {
            ours: None,
            ..at(target)
        };
        expect(&observed, 5, Action::RefuseUnversioned);
    }
}

#[test]
fn row_6_a_target_that_is_going_is_waited_for_whatever_its_stamp() {
    for token in [
        Stamp::Absent,
        Stamp::Unparsable,
        Stamp::Found(Token::new(US, 1)),
        Stamp::Found(Token::new(US, 9)),
    ] {
        let going = Present {
            is_deleting: true,
            ..present(token)
        };
        expect(&at(Target::Present(going)), 6, Action::WaitGone);
    }
}

#[test]
fn row_7_what_is_absent_is_created_for_the_live_owner_only() {
    expect(&at(Target::Absent), 7, Action::Create);
    let ours_is_dead = Observed {
        owner: Owner::Live(THEM.to_owned()),
        ..at(Target::Absent)
    };
    expect(&ours_is_dead, 7, Action::SkipStale);
}

#[test]
fn row_8_what_is_unstamped_is_adopted_unless_it_is_somebody_elses() {
    let unstamped = |controller: Option<&str>| {
        let controller = controller.map(str::to_owned);
        at(Target::Present(Present {
            controller,
            same_intent: false,
            ..present(Stamp::Absent)
        }))
    };
    expect(&unstamped(None), 8, Action::Apply);
    expect(&unstamped(Some(US)), 8, Action::Apply);
    expect(&unstamped(Some(THEM)), 8, Action::RefuseUnversioned);
    for (controller, action) in [
        (None, Action::SkipStale),
        (Some(US), Action::SkipStale),
        (Some(THEM), Action::RefuseUnversioned),
    ] {
        let ours_is_dead = Observed {
            owner: Owner::Live(THEM.to_owned()),
            ..unstamped(controller)
        };
        expect(&ours_is_dead, 8, action);
    }
}

#[test]
fn row_9_a_stamp_that_nobody_can_read_is_replaced_by_the_live_owner_only() {
    let observed = at(Target::Present(present(Stamp::Unparsable)));
    expect(&observed, 9, Action::Apply);
    assert!(decide(&observed).is_warned);
    let ours_is_dead = Observed {
        owner: Owner::Live(THEM.to_owned()),
        ..observed
    };
    expect(&ours_is_dead, 9, Action::RefuseUnversioned);
}

#[test]
fn rows_10_and_13_of_one_owner_the_newer_wins() {
    expect(&at(stamped(US, 6)), 10, Action::SkipStale);
    expect(&at(stamped(US, u64::MAX)), 10, Action::SkipStale);
    expect(&at(stamped(US, 4)), 13, Action::Apply);
    // Even if another owner lives under the name.
    let ours_is_dead = Observed {
        owner: Owner::Live(THEM.to_owned()),
        ..at(stamped(US, 6))
    };
    expect(&ours_is_dead, 10, Action::SkipStale);
}

#[test]
fn row_11_what_is_as_it_should_be_needs_no_request_and_what_was_edited_does() {
    expect(&converged(), 11, Action::Nothing);
    let edited = Present {
        is_edited: true,
        ..present(Stamp::Found(Token::new(US, 5)))
    };
    expect(&at(Target::Present(edited)), 11, Action::Apply);
}

#[test]
fn row_12_of_one_epoch_with_two_intents_the_template_decides() {
    let other = Present {
        same_intent: false,
        ..present(Stamp::Found(Token::new(US, 5)))
    };
    let observed = at(Target::Present(other));
    assert!(observed.needs_template());
    for (template, action) in [
        (Template::Ours, Action::Apply),
        (Template::Other, Action::SkipStale),
        (Template::Absent, Action::SkipStale),
        (Template::Unread, Action::Error),
    ] {
        let observed = Observed {
            template,
            ..observed.clone()
        };
        expect(&observed, 12, action);
    }
    assert!(!converged().needs_template());
}

#[test]
fn rows_14_and_15_of_two_owners_the_live_one_wins_whatever_the_epochs() {
    for epoch in [1, 5, 9] {
        let observed = at(stamped(THEM, epoch));
        expect(&observed, 14, Action::Apply);
        let ours_is_dead = Observed {
            owner: Owner::Live(THEM.to_owned()),
            ..observed
        };
        expect(&ours_is_dead, 15, Action::SkipStale);
    }
}
