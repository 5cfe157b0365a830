"""Faults that were found once, and the tests that fail if one comes back."""

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core import ArgumentError

TESTS = Path(__file__).parent.parent

FAULTS = {
    # Error bars
    "certificates of float32 eigenvalues leave rounding out":
        "spectra/test_certificates.py::test_an_eigenvalue_lies_within_each_residual_of_matrices "
        "spectra/test_certificates.py::test_residuals_are_those_of_the_vectors_as_they_are_listed "
        "spectra/test_certificates.py::"
        "test_an_eigenvalue_lies_within_each_residual_of_networks_in_float32 "
        "spectra/test_certificates.py::test_no_violation_in_four_hundred_matrices "
        "spectra/test_certificates.py::test_no_violation_in_a_hundred_networks",
    "intervals of a trace stop where the error looks small":
        "spectra/test_estimators.py::test_intervals_cover_ninety_five_percent "
        "spectra/test_estimators.py::test_intervals_cover_what_is_skewed",
    "a density draws peaks at its nodes":
        "spectra/test_quadrature.py::test_one_bulk_is_drawn_with_one_peak",
    "the band of a density misses the density":
        "spectra/test_quadrature.py::test_the_band_covers_the_exact_density "
        "spectra/test_quadrature.py::test_bands_cover_the_exact_density_at_ninety_percent",
    "nodes and weights of a density are not returned":
        "spectra/test_quadrature.py::test_nodes_and_weights_integrate_polynomials",
    "exact beside 0, a negative trace or NaN":
        "spectra/test_estimators.py::test_a_trace_that_products_contradict_is_estimated "
        "spectra/test_estimators.py::test_a_difference_lost_to_rounding_is_taken_in_float64 "
        "spectra/test_estimators.py::test_an_exact_estimate_is_finite",
    "one autocorrelation time for all modes":
        "noise/test_memory_of_modes.py::test_intervals_cover_whatever_the_memory "
        "noise/test_memory_of_modes.py::test_fitted_memory_is_that_of_the_process "
        "noise/test_memory_of_modes.py::test_coverage_and_resolution_over_200_seeds",
    "windows move the exponent without a word":
        "noise/test_memory_of_modes.py::test_the_share_that_is_kept_is_that_of_simulations "
        "noise/test_memory_of_modes.py::"
        "test_modes_that_are_too_slow_are_listed_and_the_others_used",
    "the warning of drift recommends a window":
        "noise/test_weights.py::test_drift_is_warned_about",
    "the balance defect of few directions":
        "noise/test_stationary.py::test_as_many_directions_are_compared_as_hold_the_noise "
        "noise/test_stationary.py::"
        "test_a_predicted_covariance_says_how_much_of_the_noise_it_is_of",
    "a negative covariance":
        "noise/test_stationary.py::test_unstable_and_flat_cases_are_named "
        "theory/fluctuations/test_one_layer.py::test_unusable_arguments_are_refused",
    "sharpness on other samples":
        "inspection/test_sampling_coverage.py::test_intervals_hold_the_sharpness_of_all_data "
        "inspection/test_sampling_coverage.py::"
        "test_some_intervals_hold_the_sharpness_of_all_data",
    # Files
    "names of files lead out of a recording":
        "recording/test_trajectory_files.py::test_names_that_lead_outside_the_folder_touch_nothing "
        "recording/test_trajectory_files.py::test_links_to_folders_elsewhere_are_not_written_through",
    "a missing record shifts the others":
        "recording/test_trajectory_files.py::test_a_missing_block_is_said",
    "version and header are not read":
        "recording/test_trajectory_files.py::test_the_version_is_read "
        "core/test_checking.py::test_a_newer_format_is_said_and_left_alone",
    "files are not synced":
        "durability/test_power_loss.py::test_power_loss_costs_nothing_that_was_reported "
        "durability/test_power_loss.py::test_power_loss_at_every_moment",
    "keys with slashes collide":
        "core/test_store.py::test_keys_with_slashes_stay_apart",
    "temporary files of killed runs stay":
        "recording/test_trajectory_files.py::test_a_killed_writer_leaves_nothing_behind",
    "a changed byte is read as it is":
        "recording/test_trajectory_files.py::"
        "test_every_changed_byte_is_said_or_drops_only_an_unreported_record "
        "core/test_checking.py::test_whatever_is_spoilt_nothing_wrong_is_read_and_the_rest_is_kept",
    "a gap in the records of a disk that was full":
        "durability/test_full_disk.py::test_a_gathered_batch_is_kept_as_far_as_it_fits",
    "kills and full disks":
        "durability/test_kills.py::test_kills_and_full_disks "
        "durability/test_kills.py::test_a_thousand_kills",
    # Sweeps
    "a sweep serves the results of other code":
        "experiments/test_fingerprint.py::test_a_sweep_never_serves_the_results_of_other_code "
        "experiments/test_fingerprint.py::test_data_and_modules_that_are_read_count "
        "experiments/test_fingerprint.py::test_a_changed_helper_makes_another_experiment "
        "experiments/test_fingerprint.py::test_an_own_version_stands_for_the_code",
    "the first failure ends a sweep":
        "experiments/test_sweep.py::test_a_point_that_fails_does_not_stop_the_others",
    # Pages
    "other sites read runs":
        "explorer/test_access.py::test_every_route_without_the_token_is_refused "
        "explorer/test_access.py::test_other_sites_cannot_ask "
        "browser/test_hostile.py::test_another_site_can_neither_read_nor_start_anything",
    "jobs from elsewhere without a token":
        "explorer/test_access.py::test_every_route_without_the_token_is_refused",
    "pages run inline scripts":
        "explorer/test_access.py::test_pages_run_no_scripts_but_their_own "
        "browser/test_hostile.py::test_scripts_that_reach_the_page_do_not_run",
    "what a run says becomes code":
        "explorer/test_hostile_runs.py::test_copied_code_holds_what_runs_say_as_text_only "
        "explorer/test_hostile_runs.py::test_texts_of_runs_are_never_components "
        "browser/test_hostile.py::test_what_a_run_carries_stays_text",
    "bad jobs block everybody":
        "explorer/test_access.py::test_unclamped_jobs_block_nobody "
        "explorer/test_jobs.py::test_a_job_that_breaks_gives_its_room_back "
        "explorer/test_jobs.py::test_a_job_that_takes_too_long_is_stopped "
        "explorer/test_load.py::test_fifty_people_at_once_with_hostile_ones_among_them",
    "one damaged run hides the others":
        "explorer/test_hostile_runs.py::test_damaged_runs_are_listed_as_damaged_and_hide_nothing",
    "a port that does not exist":
        "explorer/test_access.py::test_ports_that_do_not_exist_are_refused",
    "reports load what is elsewhere":
        "report/test_write_report.py::test_a_report_runs_its_own_scripts_only "
        "browser/test_hostile.py::test_a_report_of_a_trap_runs_and_loads_nothing",
    # Silently wrong
    "buffers and frozen layers are pruned":
        "subnetworks/test_trained_entries.py::"
        "test_a_causal_mask_is_not_a_weight_even_without_a_start "
        "subnetworks/test_trained_entries.py::test_a_sweep_prunes_trained_parameters_only "
        "subnetworks/test_trained_entries.py::test_a_ticket_leaves_buffers_and_frozen_layers_alone",
    "statistics of batch norm count as weights":
        "noise/test_weights.py::test_statistics_of_batch_norm_are_not_weights",
    "a mask of landmarks is read as 0 and 1":
        "manifold/test_degenerate.py::"
        "test_a_mask_of_landmarks_chooses_the_models_where_it_is_true",
    "stress of models that are the same":
        "manifold/test_degenerate.py::test_identical_models_have_no_direction_and_no_stress "
        "manifold/test_degenerate.py::test_models_that_differ_by_rounding_have_no_stress "
        "manifold/test_degenerate.py::"
        "test_rounding_changes_the_stress_by_no_more_than_its_error",
    "a data matrix is taken for eigenvalues":
        "theory/test_ribbons_accuracy.py::test_a_data_matrix_is_not_a_row_of_eigenvalues",
    "Gram matrices over outputs":
        "theory/test_ribbons_accuracy.py::"
        "test_a_gram_matrix_over_samples_and_outputs_counts_samples",
    "P(T) of short training":
        "theory/test_ribbons_accuracy.py::test_covariances_keep_their_accuracy_at_small_times",
    "steps along directions of rounding":
        "noise/test_linearized_rounding.py::test_steps_of_single_precision_are_those_of_double",
    "chains that diverge return inf":
        "simulation/test_chains.py::test_chains_that_overflow_their_squares_have_diverged "
        "simulation/test_chains.py::test_unstable_learning_rates_are_named_not_nan",
    "decay and momentum of later groups":
        "inspection/test_stability_groups.py::"
        "test_sgd_of_different_groups_diverges_just_above_the_limit "
        "inspection/test_stability_groups.py::test_the_part_reports_the_limit_of_the_groups",
    "assumptions that hold are blamed":
        "inspection/test_linear_ladder.py::"
        "test_other_models_are_compared_and_only_broken_assumptions_are_named",
    "parallel maps are read as a series":
        "inspection/test_linear_series.py::test_outputs_of_joined_maps_are_no_series",
    "fewer images than asked for":
        "experiments/test_linear_networks.py::"
        "test_fewer_images_than_asked_for_are_told_everywhere "
        "experiments/test_linear_networks.py::"
        "test_every_experiment_on_shares_of_classes_says_how_many_images_it_takes",
    "a method that did not run is named":
        "inspection/test_inspect_numbers.py::test_methods_are_named_by_what_ran",
    # Errors and limits
    "raw exceptions":
        "errors/test_bad_inputs.py::test_bad_inputs_give_one_message "
        "errors/test_bad_inputs.py::test_every_public_function_is_tried",
    "keywords that are ignored":
        "errors/test_ignored_keywords.py::test_no_keyword_is_ignored",
    "memory that is not kept":
        "spectra/test_memory.py::"
        "test_eigenpairs_that_cannot_keep_the_memory_are_refused_with_what_they_take "
        "inspection/test_limits.py::test_memory_and_time_of_every_part_stay_below_the_budget",
    "time that is not kept":
        "inspection/test_limits.py::test_no_route_begins_when_the_time_is_up",
}  # fmt: skip


@cache
def names_in(path):
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_tests(fault):
    for place in FAULTS[fault].split():
        path, name = place.split("::")
        assert name in names_in(path), place


def test_records_without_motion_and_labels_without_a_class_are_refused():
    H = np.diag([3.0, 2.0, 1.0])
    with pytest.raises(ArgumentError, match="do not move"):
        hr.variance_flatness(np.zeros((40, 3)), H, warn=False, strict=False)
    model = nn.Linear(3, 2)
    data = torch.ones(4, 3), torch.tensor([0, 1, 2, 1])
    with pytest.raises(ArgumentError, match="labels are from 0 to 2"):
        hr.subnetworks.evaluate_states(model, [model.state_dict()], data, measure="accuracy")
