#!/usr/bin/env bash
# Everything that needs a GPU, in at most eight minutes and in the order of what matters: each part has a time limit,
# writes before the next begins, and does not stop the others. Not run on a GPU yet.
#
#   benchmarks/gpu.sh CIFAR10 [OUT] [JPEGS]
#
# CIFAR10 holds CIFAR-10 as a tree of images, train/CLASS/* and test/CLASS/*; JPEGS a folder of larger ones, made up
# where it is not given. OUT (gpu_results) gets the pages and numbers of the benchmarks and a log of each part.
set -uo pipefail
cd "$(dirname "$0")/.."
cifar=${1:?give the folder of CIFAR-10 as a tree of images}
out=${2:-gpu_results}
large=${3:+--large "$3"}
mkdir -p "$out"
failed=0

part() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  local begun=$SECONDS
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  [ "$code" -eq 0 ] || failed=1
  echo "$name: exit $code after $((SECONDS - begun)) s (124: over its limit of $limit s)" | tee -a "$out/parts.txt"
}

part test_cuda 75 python -m pytest -q -p no:cacheprovider tests/test_cuda.py
part step 90 python benchmarks/bench_step.py --device cuda --out "$out" --cases resnet18@32:256 resnet50@224:256
part launches 30 python benchmarks/bench_losses.py --device cuda --out "$out"
part solvers 45 python benchmarks/bench_solvers.py --device cuda --out "$out" --sizes 256,1024,4096
part knn 20 python benchmarks/bench_knn.py --device cuda --out "$out"
# shellcheck disable=SC2086
part data 40 python benchmarks/bench_data.py --device cuda --out "$out" --small "$cifar/train" $large --repeats 3
part forms 180 python benchmarks/forms_gpu.py --root "$cifar" --minutes 2.8 --runs "$out/runs" --out "$out/forms_gpu.md"
exit "$failed"
