# What the tests' sources say without being compiled: which test cases there are, and which program has them.
package test_cases;
use strict;
use warnings;
use Exporter 'import';
our @EXPORT = qw(text_of matcher cases_of programs_of);

sub text_of {
  open(my $file, '<', $_[0]) or die "$_[0]: $!\n";
  local $/;
  return <$file>;
}

# A pattern as doctest reads it: the whole name, * any text, ? any character.
sub matcher {
  my $expression = join('', map { $_ eq '*' ? '.*' : $_ eq '?' ? '.' : quotemeta } split(//, $_[0]));
  return qr/^$expression$/;
}

# [name, decorators] of every test case of a source: its literals joined; of a template one for each type, as doctest names it.
sub cases_of {
  my ($text) = @_;
  my @cases;
  while ($text =~ /^[ \t]*TEST_CASE(_TEMPLATE)?\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)([^{;]*)\{/gm) {
    my ($is_template, $literals, $rest) = ($1, $2, $3);
    my $name = join('', $literals =~ /"((?:[^"\\\n]|\\.)*)"/g) =~ s/\\(.)/$1/gr;
    if ($is_template) {
      my ($variable, @types) = grep { $_ ne '' } map { s/^\s+|\s+$//gr } split(/,/, $rest =~ s/\)\s*$//r);
      push @cases, map { ["$name<$_>", ''] } @types;
    } else {
      push @cases, [$name, $rest];
    }
  }
  return @cases;
}

# From CMakeLists.txt files, by path: program => [its sources, by path].
sub programs_of {
  my (%lists) = @_;
  my %sources_of;
  for my $path (sort keys %lists) {
    my $folder = $path =~ s/CMakeLists\.txt$//r;
    my $text = $lists{$path} =~ s/#.*//gr;
    while ($text =~ /\w+_test\(\s*(\w+)\s([^)]*)\)|target_sources\(\s*test_(\w+)\s([^)]*)\)/g) {
      my ($program, $arguments) = defined $1 ? ($1, $2) : ($3, $4);
      push @{$sources_of{$program}}, map { $folder . $_ } grep { /^[\w\/.-]+\.cpp$/ } split(/\s+/, $arguments);
    }
  }
  return %sources_of;
}

1;
