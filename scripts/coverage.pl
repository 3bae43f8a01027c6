# coverage.sh calls this: coverage.pl OPTION COVERAGE NIGHTLY FILE..., OPTION being --tests or empty, FILE the tests' sources and the
# CMakeLists.txt that name them. tests/coverage_test.sh tests it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use test_cases;

my ($option, $coverage, $nightly, @files) = @ARGV;
my @problems;

sub lines_of {
  open(my $file, '<', $_[0]) or die "$_[0]: $!\n";
  return map { s/\s+$//r } grep { !/^\s*(#|$)/ } <$file>;
}

# Every case's name, and whether it is always skipped.
my %skipped;
my %lists = map { (s/CMakeLists\.txt$//r => text_of($_)) } grep { /CMakeLists\.txt$/ } @files;
sub is_compiled {
  my ($source) = @_;
  for my $folder (grep { $source =~ /^\Q$_\E/ } keys %lists) {
    my $name = substr($source, length $folder);
    return 1 if $lists{$folder} =~ /[\s(]\Q$name\E[\s)]/;
  }
  return 0;
}
for my $source (grep { !/CMakeLists\.txt$/ } @files) {
  my $text = text_of($source);
  push @problems, "$source: its test cases are in no program, for no CMakeLists.txt names it"
    if $text =~ /TEST_CASE\(/ && !is_compiled($source);
  for my $case (cases_of($text)) {
    my ($name, $decorators) = @$case;
    $skipped{$name} = $decorators =~ /skip\((true)?\)/ ? 1 : 0;
  }
}

my @left_out = map { [$_, matcher(s/^\S+\s+//r)] } lines_of($nightly);
for my $entry (@left_out) {
  my ($line, $matcher) = @$entry;
  push @problems, "$nightly: \"$line\" is no test case" unless grep { /$matcher/ } keys %skipped;
}
my %in_gate;
for my $name (keys %skipped) {
  $in_gate{$name} = 1 unless $skipped{$name} || grep { $name =~ $_->[1] } @left_out;
}

# Rows begin a line; the names or patterns of the cases that hold a row follow it, indented.
my ($row, %held_by, %named, @rows, %rows_of);
for my $line (lines_of($coverage)) {
  if ($line =~ /^\S/) {
    $row = $line;
    push @problems, "$coverage: the row \"$row\" stands twice" if $held_by{$row};
    $held_by{$row} = [];
    push @rows, $row;
    next;
  }
  my $pattern = $line =~ s/^\s+//r;
  my $matcher = matcher($pattern);
  push @problems, "$coverage: \"$pattern\" stands twice under \"$row\"" if $named{$row}{$pattern}++;
  my @cases = grep { /$matcher/ } keys %skipped;
  push @problems, "$coverage: \"$pattern\", which is to hold \"$row\", is no test case" unless @cases;
  for my $case (grep { $in_gate{$_} } @cases) {
    push @{$held_by{$row}}, $case;
    push @{$rows_of{$case}}, $row;
  }
}
for (@rows) {
  push @problems, "\"$_\" is held by no test case of the gate" unless @{$held_by{$_}};
}
my %numbers = map { /^([A-Z]+ \d+) / ? ($1 => 1) : () } @rows;
for my $number ((map { "FAULTS $_" } 1 .. 32), (map { "AUDIT $_" } 1 .. 13)) {
  push @problems, "$coverage: $number is missing" unless $numbers{$number};
}
# Traps have no numbers: how many rows each kind has at least.
my %fewest = (
  'gradient norm' => 5, 'tied embeddings' => 4, 'accumulation' => 5, 'partial gradients' => 4, 'data on resume' => 8,
  'state on resume' => 5, 'checkpoints' => 6, 'collectives' => 6, 'evaluation' => 3, 'metrics' => 3, 'configuration' => 4,
  'devices' => 2);
my %num_traps;
for (@rows) { $num_traps{$1}++ if /^TRAPS ([^:]+):/ }
for my $kind (sort keys %fewest) {
  my $found = $num_traps{$kind} // 0;
  push @problems, "$coverage: of the traps \"$kind\" $found rows are left, of $fewest{$kind}" if $found < $fewest{$kind};
}

if ($option eq '--tests') {
  for my $case (sort keys %rows_of) {
    print "$case\n", map { "    $_\n" } @{$rows_of{$case}};
  }
}
if (@problems) {
  print STDERR "$_\n" for sort @problems;
  exit 1;
}
printf "%d rows are held by %d of the gate's %d test cases\n", scalar(@rows), scalar(keys %rows_of),
  scalar(keys %in_gate);
