//! The published numbers: bubble rates of Qi et al. 2024 ("Zero Bubble Pipeline Parallelism", tables 5 and 9), the formulas of
//! bubbles and of activations in flight.
#![forbid(unsafe_code)]

use warpweft_schedule::{Costs, Name, Schedule};

/// p, m, F, B, W, communication, and the rates of 1F1B, ZB-H1, ZB-H2, ZB-2p.
const PUBLISHED: [(usize, usize, [f64; 4], [f64; 4]); 5] = [
    (8, 24, [18.522, 18.086, 9.337, 0.601], [0.2431, 0.1585, 0.1083, 0.0433]),
    (8, 64, [18.546, 18.097, 9.321, 0.762], [0.1240, 0.0674, 0.0444, 0.0026]),
    (8, 32, [29.802, 29.428, 19.530, 0.577], [0.1898, 0.1045, 0.0559, 0.0022]),
    (16, 48, [11.347, 11.248, 8.132, 0.377], [0.2552, 0.1397, 0.0672, 0.0066]),
    (32, 256, [10.402, 10.248, 7.698, 0.460], [0.1352, 0.0594, 0.0257, 0.0018]),
];

fn costs([forward, backward, weight, comm]: [f64; 4]) -> Costs {
    Costs { forward, backward, weight, comm }
}

fn make(name: Name, p: usize, m: usize, costs: Costs) -> Schedule {
    Schedule::new(name, p, m, None, costs, None).unwrap_or_else(|error| panic!("{name} p {p} m {m}: {error}"))
}

fn digits(rate: f64) -> String {
    format!("{rate:.4}")
}

#[test]
fn the_published_rates_of_1f1b_zb_h1_and_zb_h2_come_out_to_four_digits() {
    let mut wrong = Vec::new();
    for (p, m, times, rates) in PUBLISHED {
        for (name, wanted) in [Name::OneForwardOneBackward, Name::ZbH1, Name::ZbH2].into_iter().zip(rates) {
            let rate = make(name, p, m, costs(times)).proof().bubble_rate;
            if digits(rate) != digits(wanted) {
                wrong.push(format!("{name} p {p} m {m}: {rate:.6}, published {wanted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn equal_times_give_the_exact_rates() {
    for (name, bubble) in
        [(Name::OneForwardOneBackward, 21.0), (Name::GPipe, 21.0), (Name::ZbH1, 7.0), (Name::ZbH2, 0.0)]
    {
        let proof = make(name, 8, 24, Costs::default()).proof().clone();
        assert_eq!(proof.cost, 72.0 + bubble, "{name}");
        assert_eq!(proof.bubble_rate, bubble / (72.0 + bubble), "{name}");
    }
}

#[test]
fn activations_in_flight_are_the_formulas() {
    for p in 1..=9 {
        for m in 1..=24 {
            let peak = |name| make(name, p, m, Costs::default()).peak_activations();
            let wanted = |count: &dyn Fn(usize) -> usize| (0..p).map(|s| count(s).min(m)).collect::<Vec<_>>();
            assert_eq!(peak(Name::OneForwardOneBackward), wanted(&|s| p - s), "1f1b p {p} m {m}");
            assert_eq!(peak(Name::GPipe), wanted(&|_| m), "gpipe p {p} m {m}");
            assert_eq!(peak(Name::ZbH1), wanted(&|_| p), "zb-h1 p {p} m {m}");
            assert_eq!(peak(Name::ZbH2), wanted(&|_| 2 * p - 1), "zb-h2 p {p} m {m}");
        }
    }
}

#[test]
fn interleaving_divides_the_bubble() {
    for (p, v) in [(2, 2), (4, 2), (4, 3), (8, 4)] {
        for rounds in [2, 3] {
            let m = rounds * p;
            let schedule =
                Schedule::new(Name::Interleaved, p, m, Some(v), Costs::default(), None).expect("interleaved");
            let bubble = schedule.proof().cost - 3.0 * m as f64;
            let wanted = 3.0 * (p - 1) as f64 / v as f64;
            assert!((bubble - wanted).abs() < 1e-9, "p {p} v {v} m {m}: {bubble}, not {wanted}");
            // In chunks of 1/v of a stage (Narayanan et al. 2021).
            let peak = schedule.peak_activations()[0];
            assert_eq!(peak, ((v - 1) * p + 2 * (p - 1) + 1).min(m * v), "p {p} v {v} m {m}");
        }
    }
}

/// DeepSeek-V3 report, table 2: (p/2 - 1)(F&B + B - 3W), where B is the whole backward; here F&B lasts F + B, since the model of
/// costs has nothing to hide behind.
#[test]
fn dualpipe_has_its_published_bubble_and_memory() {
    for p in [2, 4, 6, 8, 16] {
        for m in [2 * p, 3 * p, 4 * p + 2] {
            let schedule = make(Name::DualPipe, p, m, Costs::default());
            let bubble = schedule.proof().cost - 3.0 * m as f64;
            let (whole, weight) = (2.0, 1.0);
            let formula = (p as f64 / 2.0 - 1.0) * ((1.0 + whole) + whole - 3.0 * weight);
            assert!(bubble <= formula, "p {p} m {m}: {bubble}, above {formula}");
            assert_eq!(schedule.peak_activations(), vec![p + 1; p], "p {p} m {m}");
        }
    }
}

/// Qi et al. 2024: no bubble where F = B = W, with the activations of 1F1B: p stages, here 2p chunks of half a stage.
#[test]
fn zb_v_has_no_bubble_with_the_memory_of_1f1b() {
    for p in 1..=12 {
        for m in [2 * p, 3 * p, 5 * p + 1] {
            let schedule = make(Name::ZbV, p, m, Costs::default());
            assert_eq!(schedule.proof().bubble_rate, 0.0, "p {p} m {m}");
            assert_eq!(schedule.peak_activations(), vec![2 * p; p], "p {p} m {m}");
        }
    }
}

/// Within twice the memory of 1F1B, which is what ZB-2p takes.
#[test]
fn the_search_is_at_least_as_good_as_zb_2p() {
    let mut wrong = Vec::new();
    for (p, m, times, [.., published]) in PUBLISHED {
        let schedule = make(Name::Auto, p, m, costs(times));
        let rate = schedule.proof().bubble_rate;
        let held = schedule.peak_activations().into_iter().max().unwrap_or(0);
        assert!(held <= 2 * p * schedule.placement().chunks_per_stage(), "p {p} m {m}: {held}");
        if digits(rate) > digits(published) {
            wrong.push(format!("p {p} m {m}: {rate:.6}, published {published}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_search_is_no_worse_than_any_named_schedule_that_fits() {
    let times = Costs { forward: 1.0, backward: 1.2, weight: 0.7, comm: 0.1 };
    for (p, m) in [(1, 3), (2, 5), (3, 2), (4, 8)] {
        for limit in [1, 2, 3, p, 2 * p, m] {
            let auto = Schedule::new(Name::Auto, p, m, None, times, Some(limit)).expect("auto fits from 1 on");
            let held = auto.peak_activations().into_iter().max().unwrap_or(0);
            assert!(held <= limit * auto.placement().chunks_per_stage(), "p {p} m {m} limit {limit}: {held}");
            for name in [Name::OneForwardOneBackward, Name::GPipe, Name::ZbH1, Name::ZbH2, Name::Interleaved, Name::ZbV]
            {
                if let Ok(named) = Schedule::new(name, p, m, None, times, Some(limit)) {
                    let (a, b) = (auto.proof().cost, named.proof().cost);
                    assert!(a <= b * (1.0 + 1e-9), "p {p} m {m} limit {limit}: {a}, {name} {b}");
                }
            }
        }
        let none = Schedule::new(Name::Auto, p, m, None, times, Some(0)).expect_err("nothing fits into nothing");
        assert!(none.to_string().contains("limit is 0") && none.to_string().contains("allow 1"), "{none}");
    }
}
