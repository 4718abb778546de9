// SPDX-License-Identifier: Apache-2.0
// PNG through python3 with matplotlib: the same plot that replay_plot.cc writes as SVG.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/files/file_ops.h"
#include "cli/replay_plot.h"
#include "cli/text.h"

extern char** environ;

namespace flashprime::cli {
namespace {

// Nothing is imported from the current directory, which "python3 -c" would search first.
constexpr const char* kProbe = R"py(
import sys
sys.path = [path for path in sys.path if path]
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot
)py";

constexpr const char* kDraw = R"py(
import sys
sys.path = [path for path in sys.path if path]
import json
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as pyplot

plot = json.load(sys.stdin)
pyplot.rcParams["text.parse_math"] = False
# In points: of a figure of 9.6 by 9.6 inches.
subtitle_size = min(9, 1000 / (len(plot["subtitle"]) + 1))
figure, axes = pyplot.subplots(4, 1, figsize=(9.6, 9.6), dpi=100, layout="constrained",
                               gridspec_kw={"height_ratios": [2.2, 1, 1, 1]})
figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)


def titles(axis, title):
    axis.set_title(plot["subtitle"], loc="left", fontsize=subtitle_size, pad=22)
    axis.annotate(title, (0, 1), (0, 38), xycoords="axes fraction", textcoords="offset points",
                  fontsize=12, fontweight="bold")


def legend(axis, handles):
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2,
                ncols=4, frameon=False, fontsize=9)


histogram = axes[0]
width = plot["bin_width"]
handles = [histogram.bar([i * width for i in range(len(plot["bin_counts"]))], plot["bin_counts"],
                         width=width * 0.95, align="edge", color="#0072b2", label="steps")]
for mark, color in zip(plot["marks"], ["#009e73", "#e69f00", "#d55e00"]):
    handles.append(histogram.axvline(mark["value"], color=color, linestyle="--",
                                     label=mark["label"]))
histogram.set_xlim(0, width * max(1, len(plot["bin_counts"])))
histogram.yaxis.get_major_locator().set_params(integer=True)
histogram.set_xlabel("time of a step, attention (" + plot["time_unit"] + ")")
histogram.set_ylabel("number of steps")
titles(histogram, "Latency of a step")
legend(histogram, handles)

handles = []
for axis, strip, color in zip(axes[1:], plot["strips"], ["#0072b2", "#d55e00", "#009e73"]):
    edges = [min(i * plot["steps_per_value"], plot["steps"])
             for i in range(len(strip["values"]) + 1)]
    if strip["values"]:
        handles.append(axis.stairs(strip["values"], edges, color=color, label=strip["label"],
                                   baseline=None))
    axis.set_xlim(0, max(1, plot["steps"]))
    axis.set_ylim(0, 1.1 * max([*strip["values"], 0]) or 1)
    axis.set_ylabel(strip["axis"])
    axis.grid(axis="y", alpha=0.3)
    axis.xaxis.get_major_locator().set_params(integer=True)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter(lambda value, position: f"{value:,.10g}")
    axis.tick_params(labelbottom=axis is axes[3])
axes[3].set_xlabel("step")
figure.align_ylabels()
titles(axes[1], "Steps over the replay")
legend(axes[1], handles)
figure.savefig(sys.stdout.buffer, format="png")
)py";

constexpr const char* kSvgWorks = "; a name that ends in .svg needs neither";

Status missing(const std::string& what) {
  return {StatusCode::kDevice, "--plot: a .png needs python3 with matplotlib: " + what + kSvgWorks};
}

class Fd {
 public:
  ~Fd() { close(); }
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  int fd = -1;
};

struct Pipe {
  Fd read_end, write_end;

  bool open() {
    int ends[2] = {};
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end.fd = ends[0];
    write_end.fd = ends[1];
    return true;
  }
};

// What `script` writes to its standard output when it is given `input`.
StatusOr<std::string> run_python(const char* script, std::string_view input) {
  Pipe to_child, from_child;
  if (!to_child.open() || !from_child.open()) {
    return Status(StatusCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, to_child.read_end.fd, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child.write_end.fd, STDOUT_FILENO);
  // Warnings of a library are no talk of ours.
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // A group of its own: Ctrl-C ends the replay, not the plot of what it has done.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const char* argv[] = {"python3", "-c", script, nullptr};
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, argv[0], &actions, &attributes, const_cast<char* const*>(argv), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return missing(fmt::format("python3: {}", std::strerror(error)));
  to_child.read_end.close();
  from_child.write_end.close();

  while (!input.empty()) {  // the child reads everything before it writes
    const ssize_t count =
        retry_on_eintr([&] { return write(to_child.write_end.fd, input.data(), input.size()); });
    if (count < 0) break;  // it has ended: its status says why
    input.remove_prefix(static_cast<size_t>(count));
  }
  to_child.write_end.close();
  std::string output;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count =
        retry_on_eintr([&] { return read(from_child.read_end.fd, buffer.data(), buffer.size()); });
    if (count <= 0) break;
    output.append(buffer.data(), static_cast<size_t>(count));
  }
  int status = 0;
  if (retry_on_eintr([&] { return waitpid(child, &status, 0); }) != child) {
    return Status(StatusCode::kIo,
                  fmt::format("cannot wait for python3: {}", std::strerror(errno)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return missing("'import matplotlib' or drawing with it failed");
  }
  return output;
}

}  // namespace

Status check_png_renderer() {
  return run_python(kProbe, "").status();
}

StatusOr<std::string> plot_png(const ReplayPlot& plot) {
  nlohmann::json json = {
      {"subtitle", printable(plot.subtitle, 400)},
      {"time_unit", plot.time_unit},
      {"bin_width", plot.bin_width},
      {"bin_counts", plot.bin_counts},
      {"steps", plot.steps},
      {"steps_per_value", plot.steps_per_value},
      {"marks", nlohmann::json::array()},
      {"strips", nlohmann::json::array()},
  };
  for (const PlotMark& mark : plot.marks) {
    json["marks"].push_back({{"label", mark.label}, {"value", mark.value}});
  }
  for (const PlotStrip& strip : plot.strips) {
    json["strips"].push_back(
        {{"label", strip.label}, {"axis", strip.axis}, {"values", strip.values}});
  }
  StatusOr<std::string> png = run_python(kDraw, json.dump());
  if (png.ok() && png->substr(0, 4) != "\x89PNG") return missing("it wrote no PNG");
  return png;
}

}  // namespace flashprime::cli
